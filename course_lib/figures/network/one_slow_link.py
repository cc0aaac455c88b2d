"""A ring with one slow link, and what it does to the time of an all-reduce."""

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_number, format_seconds
from course_lib.theory.network.one_slow_link import OneSlowLink
from course_lib.trace import Event

_MOST_DRAWN = 8


def slow_ring(result: OneSlowLink, title: str = "") -> Drawing:
    """The ring, with the ends of its slow link framed; below it the times, on one scale."""
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
        _ring(result),
        Lanes(rows, sentence=f"{'; '.join(rows)}: {times_as_long}"),
        key=(),
        notes=[note],
    )


def _ring(result: OneSlowLink) -> Cells:
    drawn = min(result.ranks, _MOST_DRAWN)
    slow = result.factor > 1
    names = [str(rank) for rank in range(drawn)]
    ring = {
        name: Cell(name, frame="slow" if slow and place < 2 else "")
        for place, name in enumerate(names)
    }
    links = [
        (("ring", name), ("ring", following))
        for name, following in zip(names, [*names[1:], names[0]], strict=True)
    ]
    rate = f"{format_number(8 * result.slow_bytes_per_s / 1e9)} Gb/s"
    note = f"{drawn} of {counted(result.ranks, 'rank')}; the link of the two in frames: {rate}"
    if not slow:
        note = f"{drawn} of {counted(result.ranks, 'rank')}; no link is slower than the others"
    return Cells({"ring": ring}, arrows=links, heads=False, note=note, said="a ring")
