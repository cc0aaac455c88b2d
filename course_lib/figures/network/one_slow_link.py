"""A ring with one slow link, and what it does to the time of an all-reduce."""

import math

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_number, format_seconds
from course_lib.theory.network.one_slow_link import OneSlowLink

_CENTRE, _RADIUS, _MOST_DRAWN = (88.0, 128.0), 64.0, 16
_LEFT, _TOP, _ROW, _WIDTH = 210.0, 56.0, 52.0, 190.0


def slow_ring(result: OneSlowLink, title: str = "") -> Drawing:
    """On the left the ring, its slow link thick; on the right the times, on one scale."""
    drawing = Drawing(_TOP + 3 * _ROW + 14, sentence(result))
    heading = f"{counted(result.ranks, 'rank')}, {counted(result.rings, 'ring')}"
    drawing.title(title or heading)
    told = "time and bus bandwidth of an all-reduce: every piece passes over every link of its ring"
    drawing.write(0, 30, told, colour=style.GREY)
    _ring(drawing, result)
    times = _times(result)
    scale = _WIDTH / max(time_s for time_s, *_ in times.values())
    for row, (name, (time_s, bus_bytes_per_s, look)) in enumerate(times.items()):
        y = _TOP + row * _ROW
        drawing.write(_LEFT, y + 10, name)
        drawing.boxes([(_LEFT, y + 16, max(1.0, time_s * scale), 16)], look)
        told = f"{format_seconds(time_s)}, {format_number(bus_bytes_per_s / 1e9)} GB/s"
        drawing.write(_LEFT + max(1.0, time_s * scale) + 6, y + 28, told)
    return drawing


def sentence(result: OneSlowLink) -> str:
    """The times, in words."""
    words = [
        f"{name} {format_seconds(time_s)} at a bus bandwidth of {format_number(bus / 1e9)} GB/s"
        for name, (time_s, bus, _) in _times(result).items()
    ]
    return (
        f"An all-reduce of {counted(result.ranks, 'rank')} over {counted(result.rings, 'ring')}: "
        f"{'; '.join(words)}. It takes {format_number(result.factor)} times as long for every rank."
    )


def _times(result: OneSlowLink) -> dict[str, tuple[float, float, str]]:
    """By name: seconds, bus bandwidth, and the colour of the bar."""
    rows = {
        "all links alike": (result.healthy_s, result.healthy_bus_bytes_per_s, style.MESSAGES),
        "one link slow": (result.slow_s, result.slow_bus_bytes_per_s, style.WARNING),
    }
    if result.without_s is not None:
        bus = result.healthy_bus_bytes_per_s * result.healthy_s / result.without_s
        rows["its ring left out"] = (result.without_s, bus, style.MESSAGES)
    return rows


def _ring(drawing: Drawing, result: OneSlowLink) -> None:
    drawn = min(result.ranks, _MOST_DRAWN)
    angles = [2 * math.pi * place / drawn - math.pi / 2 for place in range(drawn)]
    places = [
        (_CENTRE[0] + _RADIUS * math.cos(angle), _CENTRE[1] + _RADIUS * math.sin(angle))
        for angle in angles
    ]
    slow = result.factor > 1
    for place, start in enumerate(places):
        end = places[(place + 1) % drawn]
        if slow and place == 0:
            drawing.line([start, end], style.WARNING, 5)
        else:
            drawing.line([start, end], style.MESSAGES, 1.5)
    for x, y in places:
        drawing.dot(x, y, style.COMPUTING, radius=4)
    # A ring of two is a vertical line: the words stand beside it.
    x, align = (_CENTRE[0] + 10, "left") if drawn == 2 else (_CENTRE[0], "center")
    drawing.write(x, _CENTRE[1] - 2, counted(result.ranks, "rank"), align=align)
    lines = [f"one link at {format_number(8 * result.slow_bytes_per_s / 1e9)} Gb/s"]
    if drawn < result.ranks:
        lines.insert(0, f"{drawn} of them drawn")
    for row, line in enumerate(lines):
        y = _CENTRE[1] + 14 + 13 * row
        drawing.write(x, y, line, align=align, colour=style.GREY, size=9)
