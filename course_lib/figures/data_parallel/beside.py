"""Backward and the link, as predicted and as measured, on one scale of time."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import width_pt

_LEFT, _RIGHT, _TOP, _BAR = 66.0, WIDTH_PT - 8, 26.0, 20.0
_CHART = 2 * _BAR + 36

Interval = tuple[float, float]  # start, end in seconds
_FILLS = {"backward": style.BACKWARD, "link": style.MESSAGES}


def beside(
    charts: Mapping[str, tuple[Sequence[Interval], Sequence[Interval]]], title: str = ""
) -> Drawing:
    """{"predicted": (backward, link), "measured": …}: numbered bars, and where each chart ends.

    Raises ValueError without a chart, or for one without intervals.
    """
    if not charts or not all(backward and link for backward, link in charts.values()):
        raise ValueError("charts must hold intervals of both: give {name: (backward, link)}")
    ends = {name: max(end for lane in lanes for _, end in lane) for name, lanes in charts.items()}
    words = "; ".join(f"{name}: {_ms(end)}" for name, end in ends.items())
    drawing = Drawing(_TOP + _CHART * len(charts) + 4, f"{title}. {words}.")
    drawing.title(title)
    scale = (_RIGHT - _LEFT) / max(ends.values())
    for row, (name, lanes) in enumerate(charts.items()):
        top = _TOP + row * _CHART
        drawing.write(0, top + 11, name, 9, bold=True)
        for place, (lane, spans) in enumerate(zip(_FILLS, lanes, strict=True)):
            y = top + 16 + place * (_BAR + 3)
            drawing.write(_LEFT - 8, y + 14, lane, align="right")
            _lane(drawing, spans, y, scale, _FILLS[lane])
        _end(drawing, top, lanes[0][-1][1], ends[name], scale)
    return drawing


def _lane(drawing: Drawing, spans: Sequence[Interval], y: float, scale: float, fill: str) -> None:
    for number, (start, end) in enumerate(spans, start=1):
        x, width = _LEFT + start * scale, max(0.5, (end - start) * scale)
        drawing.boxes([(x, y, width, _BAR)], fill)
        if width > width_pt(str(number), 9) + 3:
            drawing.write(x + width / 2, y + 14, str(number), 9, "center", style.ON_FILL)


def _end(drawing: Drawing, top: float, backward: float, end: float, scale: float) -> None:
    """Where backward ends and where all ends, with their times above."""
    for time_s, align in ((backward, "center"), (end, "right")):
        x = _LEFT + time_s * scale
        drawing.line([(x, top + 13), (x, top + 16 + 2 * _BAR + 5)], style.INK, dashed=True)
        if align == "right" or (end - backward) * scale > 60:
            drawing.write(x, top + 10, _ms(time_s), 9, align)


def _ms(time_s: float) -> str:
    return f"{1000 * time_s:,.0f} ms"
