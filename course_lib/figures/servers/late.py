"""How late the gradients of each trainer were: a histogram for each."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted, elide

_LEFT, _TOP, _WIDTH, _ROW, _BAR = 92.0, 44.0, 400.0, 46.0, 30.0
_TRAINERS = 8  # more than these are elided
_BARS = 20  # where there are more delays, several share a bar


def late_gradients(staleness: Sequence[Sequence[int]], title: str = "") -> Sheet:
    """`staleness[t]`: by how many updates each gradient of trainer t was late.

    Raises ValueError where there is no trainer, or one without gradients.
    """
    if not staleness or not all(len(own) for own in staleness):
        raise ValueError("staleness must hold at least one number each: give [[updates, …], …]")
    rows = elide(len(staleness), _TRAINERS)
    sheet = Sheet(_TOP + _ROW * len(rows) + 36, sentence(staleness))
    sheet.title(title or "How late gradients come")
    most = max(max(own) for own in staleness)
    share = -(-(most + 1) // _BARS)
    bars = most // share + 1
    for row, trainer in enumerate(rows):
        bottom = _TOP + _ROW * row + _BAR
        if trainer is None:
            sheet.write(_LEFT - 8, bottom, "…", align="right")
        else:
            _bars(sheet, [late // share for late in staleness[trainer]], bottom, bars)
            sheet.write(_LEFT - 8, bottom - 12, f"trainer {trainer}", align="right")
            mean = f"mean {fmean(staleness[trainer]):.1f}"
            sheet.write(_LEFT - 8, bottom, mean, align="right", colour=style.GREY)
    bottom = _TOP + _ROW * len(rows)
    for bar in range(0, bars, -(-bars // 12)):
        x = _LEFT + (bar + 0.5) * _WIDTH / bars
        sheet.write(x, bottom + 4, str(bar * share), align="center", colour=style.GREY)
    sheet.write(_LEFT + _WIDTH / 2, bottom + 22, _axis(share), align="center")
    return sheet


def sentence(staleness: Sequence[Sequence[int]]) -> str:
    """The mean of each trainer and of all, in words."""
    every = [late for own in staleness for late in own]
    means = ", ".join(f"{fmean(own):.1f}" for own in staleness)
    return (
        f"{counted(len(every), 'gradient')} of {counted(len(staleness), 'trainer')}, late by "
        f"{fmean(every):.1f} updates on average, {max(every)} at most; by trainer {means}."
    )


def _axis(share: int) -> str:
    return "updates in between" + (f", {share} to a bar" if share > 1 else "")


def _bars(sheet: Sheet, own: Sequence[int], bottom: float, bars: int) -> None:
    """How often each bar is in `own`; the tallest has the height of a row."""
    counts, step = Counter(own), _WIDTH / bars
    scale = _BAR / max(counts.values())
    sheet.boxes(
        [
            (_LEFT + (bar + 0.1) * step, bottom - scale * count, 0.8 * step, scale * count)
            for bar, count in sorted(counts.items())
        ],
        style.GRADIENTS,
    )
    sheet.line([(_LEFT, bottom), (_LEFT + _WIDTH, bottom)])
