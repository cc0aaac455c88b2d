"""A ring with one slow link, and what it does to the time of an all-reduce."""

import math

from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_number, format_seconds
from course_lib.theory.network.one_slow_link import OneSlowLink
from course_lib.trace import Event

_MOST_DRAWN = 16


def slow_ring(result: OneSlowLink, title: str = "") -> Drawing:
    """The ring, with its slow link thick; below it the times, on one scale."""
    bus = result.healthy_bus_bytes_per_s
    times = {
        "all links alike": (result.healthy_s, bus, "all-reduce"),
        "one link slow": (result.slow_s, result.slow_bus_bytes_per_s, "slow"),
    }
    if result.without_s is not None:
        without = bus * result.healthy_s / result.without_s
        times["its ring left out"] = (result.without_s, without, "all-reduce")
    rows: dict[str, list[Event]] = {
        f"{name}: {format_seconds(time_s)}, {format_number(bus / 1e9)} GB/s": [
            Event(0, 0, word, end=time_s)
        ]
        for name, (time_s, bus, word) in times.items()
    }
    if result.without_s is None:
        rows["no other ring"] = []  # equally high, whatever a slider says
    sizes = f"{counted(result.ranks, 'rank')}, {counted(result.rings, 'ring')}"
    times_as_long = f"{format_number(result.factor)} times as long for every rank"
    note = "time and bus bandwidth of an all-reduce: every piece passes over every link of its ring"
    return page(
        title or sizes,
        _Ring(result),
        Lanes(rows, sentence=f"{'; '.join(rows)}: {times_as_long}"),
        key=(),
        notes=[note],
    )


class _Ring:
    """A flat ring of dots, with its slow link thick, and what it is in its middle."""

    height_pt, words, sentence = 92.0, (), "a ring"

    def __init__(self, result: OneSlowLink) -> None:
        self.result = result

    def draw(self, drawing: Drawing, top: float) -> None:
        result, drawn = self.result, min(self.result.ranks, _MOST_DRAWN)
        middle, y = WIDTH_PT / 2, top + self.height_pt / 2
        turns = [2 * math.pi * (place - 0.5) / drawn - math.pi / 2 for place in range(drawn)]
        dots = [(middle + 170 * math.cos(turn), y + 38 * math.sin(turn)) for turn in turns]
        slow, *links = [list(link) for link in zip(dots, [*dots[1:], dots[0]], strict=True)]
        drawing.lines(links, style.MESSAGES, 1.5)
        drawing.lines([slow], *((style.WARNING, 5) if result.factor > 1 else (style.MESSAGES, 1.5)))
        for place in dots:
            drawing.dot(*place, style.COMPUTING, radius=4)
        told = [f"{drawn} of them drawn"] * (drawn < result.ranks)
        told += [f"one link at {format_number(8 * result.slow_bytes_per_s / 1e9)} Gb/s"]
        drawing.write(middle, y - 4, counted(result.ranks, "rank"), align="center")
        lines = [(middle, y + 9 + 12 * row, line) for row, line in enumerate(told)]
        drawing.write_all(lines, 9, "center", style.GREY)
