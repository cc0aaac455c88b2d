"""When a rank computed and when it communicated, from a profiler's intervals."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet

Interval = tuple[float, float]  # start, end in milliseconds
Lanes = tuple[Sequence[Interval], Sequence[Interval]]  # computation, communication

_LEFT, _RIGHT, _TOP, _ROW, _BAR = 96, 10, 30, 74, 18
_SHORTEST_PT = 1.0  # gaps and bars that are shorter on paper are not drawn one by one
_LOOKS = (style.COMPUTING, style.MESSAGES)  # computation, communication


def overlap(
    runs: Mapping[str, Lanes],
    heading: str = "One backward pass of one rank",
    names: tuple[str, str] = ("computation", "communication"),
) -> Sheet:
    """Two bars a run on one scale of time: computation, and communication below it.

    `runs` maps a title, which says what was measured, to intervals in milliseconds; `names` are
    those of the two bars. Raises ValueError when there is no run or one without computation.
    """
    if not runs or not all(computation for computation, _ in runs.values()):
        raise ValueError(
            "runs must hold at least one run, each with computation: give {title: (computation, "
            "communication)}"
        )
    longest = max(end for lanes in runs.values() for lane in lanes for _, end in lane)
    scale = (WIDTH_PT - _LEFT - _RIGHT) / longest
    height = _TOP + _ROW * len(runs) + 30
    sheet = Sheet(height, "; ".join(runs) + ".")
    sheet.title(heading)
    for place, (title, lanes) in enumerate(runs.items()):
        _run(sheet, _TOP + place * _ROW, title, dict(zip(names, lanes, strict=True)), scale)
    _axis(sheet, height - 26, longest)
    return sheet


def _run(
    sheet: Sheet, top: float, title: str, lanes: Mapping[str, Sequence[Interval]], scale: float
) -> None:
    sheet.write(0, top + 11, title)
    for row, ((name, lane), fill) in enumerate(zip(lanes.items(), _LOOKS, strict=True)):
        y = top + 18 + row * (_BAR + 4)
        sheet.write(_LEFT - 6, y + 13, name, align="right", colour=style.GREY)
        bars = [
            (_LEFT + start * scale, y, max(_SHORTEST_PT, (end - start) * scale), _BAR)
            for start, end in _joined(lane, _SHORTEST_PT / scale)
        ]
        sheet.boxes(bars, fill)


def _joined(lane: Sequence[Interval], gap: float) -> list[Interval]:
    """Intervals with a smaller gap than `gap` between them as one."""
    joined: list[Interval] = []
    for start, end in lane:
        if joined and start - joined[-1][1] < gap:
            start = joined.pop()[0]
        joined.append((start, end))
    return joined


def _axis(sheet: Sheet, top: float, longest: float) -> None:
    right = WIDTH_PT - _RIGHT
    sheet.line([(_LEFT, top), (right, top)], style.GREY)
    sheet.write(_LEFT, top + 14, "0", align="center", colour=style.GREY)
    sheet.write(
        right,
        top + 14,
        f"{longest:,.{0 if longest >= 100 else 1}f} ms",
        align="right",
        colour=style.GREY,
    )
