"""How late the gradients of each trainer were: a histogram for each."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from course_lib.figures.engines.axis import Axis
from course_lib.figures.engines.lines import Frame
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted, elide

_LEFT, _TOP, _WIDTH, _ROW, _BAR = 92.0, 44.0, 400.0, 46.0, 30.0
_TRAINERS = 8  # more than these are elided
_BARS = 20  # where there are more delays, several share a bar


def late_gradients(
    staleness: Sequence[Sequence[int]], title: str = "How late gradients come"
) -> Drawing:
    """`staleness[t]`: by how many updates each gradient of trainer t was late."""
    rows, every = elide(len(staleness), _TRAINERS), [late for own in staleness for late in own]
    share = -(-(max(every) + 1) // _BARS)
    bars = max(every) // share + 1
    bottom = _TOP + _ROW * (len(rows) - 1) + _BAR
    drawing = Drawing(bottom + 34, _sentence(staleness, every))
    drawing.title(title)
    ticks = [bar + 0.5 for bar in range(0, bars, -(-bars // 12))]
    words = "updates in between" + f", {share} to a bar" * (share > 1)
    across = Axis(ticks, lambda tick: str(int(tick) * share), words, ends=(0, bars))
    frame = Frame(drawing, across, across, _LEFT, _TOP, _LEFT + _WIDTH, bottom)
    frame.ticks_across()
    for row, trainer in enumerate(rows):
        y = _TOP + _ROW * row + _BAR
        if trainer is None:
            drawing.write(_LEFT - 8, y, "…", align="right")
            continue
        counts = Counter(late // share for late in staleness[trainer])
        high = _BAR / max(counts.values())
        drawing.boxes(
            [
                (frame.x(bar + 0.1), y - high * count, 0.8 * _WIDTH / bars, high * count)
                for bar, count in sorted(counts.items())
            ],
            style.GRADIENTS,
        )
        drawing.line([(_LEFT, y), (_LEFT + _WIDTH, y)])
        drawing.write(_LEFT - 8, y - 12, f"trainer {trainer}", align="right")
        mean = f"mean {fmean(staleness[trainer]):.1f}"
        drawing.write(_LEFT - 8, y, mean, align="right", colour=style.GREY)
    return drawing


def _sentence(staleness: Sequence[Sequence[int]], every: Sequence[int]) -> str:
    """The mean of each trainer and of all, in words."""
    means = ", ".join(f"{fmean(own):.1f}" for own in staleness)
    return (
        f"{counted(len(every), 'gradient')} of {counted(len(staleness), 'trainer')}, late by "
        f"{fmean(every):.1f} updates on average, {max(every)} at most; by trainer {means}."
    )
