"""Time of a collective against its size: ring, tree, and where they cross."""

import math
from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_bytes, format_seconds
from course_lib.theory.network.ring_or_tree import RingOrTree, ring_or_tree

Point = tuple[float, float]  # bytes, seconds

_LEFT, _TOP, _WIDTH, _HEIGHT = 62.0, 60.0, 440.0, 180.0
_LOOKS = {"ring": (style.MESSAGES, False), "tree": (style.BLUE, True)}  # colour, dashed
_SAMPLES = 24  # points of a curve; it is smooth


def collective_times(
    result: RingOrTree,
    title: str = "",
    smallest: int = 2**10,
    largest: int = 2**32,
    measured: Mapping[str, Sequence[Point]] | None = None,
) -> Sheet:
    """Seconds against bytes, both logarithmic, with the result's own size and the crossover.

    `measured`: {"ring": [(bytes, seconds), …], "tree": …}, drawn as dots on the curves.
    """
    times = _times(result)
    sheet = Sheet(_TOP + _HEIGHT + 44 + 18 * (len(times) + 1), sentence(result, measured))
    heading = f"{result.operation}, {counted(result.ranks, 'rank')}, {result.link.name}"
    sheet.title(title or heading)
    curves = {kind: _curve(result, kind, smallest, largest) for kind in times}
    dots = measured or {}
    place = _Scale(smallest, largest, [*curves.values(), *dots.values()])
    _axes(sheet, place)
    _marks(sheet, place, result)
    for kind, points in curves.items():
        colour, dashed = _LOOKS[kind]
        sheet.line([place(*point) for point in points], colour, 2, dashed)
        for point in dots.get(kind, ()):
            sheet.dot(*place(*point), colour, radius=4)
    if not dots:
        for kind, time_s in times.items():
            sheet.dot(*place(result.size_bytes, time_s), _LOOKS[kind][0])
    _key(sheet, result, bool(dots))
    return sheet


def sentence(result: RingOrTree, measured: Mapping[str, Sequence[Point]] | None = None) -> str:
    """The two times, and the crossover, in words."""
    what = f"{result.operation} of {_size(result.size_bytes)} on {counted(result.ranks, 'rank')}"
    times = f"{format_seconds(result.ring_s)} by the ring in {counted(result.ring_steps, 'step')}"
    if result.tree_s is not None:
        times += f", {format_seconds(result.tree_s)} by the {result.tree} in {result.tree_steps}"
    runs = sum(len(points) for points in (measured or {}).values())
    seen = f"; {runs} measured times as dots" if runs else ""
    return f"{result.link.name}, {what}: {times}; {_crossing(result)}{seen}."


def _crossing(result: RingOrTree) -> str:
    if result.crossover_bytes is None:
        return "there is no tree for it"
    if result.crossover_bytes == 0:
        return "the tree is faster at no size"
    return f"the tree is faster below {_size(result.crossover_bytes)}"


def _times(result: RingOrTree) -> dict[str, float]:
    """Seconds by kind: of the ring, and of the tree where there is one."""
    times = {"ring": result.ring_s}
    return times if result.tree_s is None else {**times, "tree": result.tree_s}


def _curve(result: RingOrTree, kind: str, smallest: int, largest: int) -> list[Point]:
    points: list[Point] = []
    for part in range(_SAMPLES + 1):
        size = smallest * (largest / smallest) ** (part / _SAMPLES)
        one = ring_or_tree(result.operation, size, result.ranks, result.link, tree=result.tree)
        points.append((size, _times(one)[kind]))
    return points


class _Scale:
    """Where a size and a time lie on the sheet; whole decades of seconds around all points."""

    def __init__(self, smallest: int, largest: int, curves: Sequence[Sequence[Point]]) -> None:
        self.smallest = smallest
        self.doublings = round(math.log2(largest / smallest))
        times = [time for points in curves for _, time in points if time > 0]
        self.top = math.ceil(math.log10(max(times)))
        self.decades = max(1, self.top - math.floor(math.log10(min(times))))

    def __call__(self, size_bytes: float, time_s: float) -> tuple[float, float]:
        down = (self.top - math.log10(time_s)) / self.decades
        return self.across(size_bytes), _TOP + min(max(down, 0), 1) * _HEIGHT

    def across(self, size_bytes: float) -> float:
        part = math.log2(size_bytes / self.smallest) / self.doublings
        return _LEFT + min(max(part, 0), 1) * _WIDTH

    def holds(self, size_bytes: float) -> bool:
        return self.smallest <= size_bytes <= self.smallest * 2.0**self.doublings


def _axes(sheet: Sheet, place: _Scale) -> None:
    bottom = _TOP + _HEIGHT
    every = math.ceil(place.decades / 7)
    for decade in range(0, place.decades + 1, every):
        time = 10.0 ** (place.top - decade)
        _, y = place(place.smallest, time)
        sheet.line([(_LEFT, y), (_LEFT + _WIDTH, y)], style.PALE)
        sheet.write(
            _LEFT - 6, y + 4, format_seconds(time), align="right", colour=style.GREY, size=9
        )
    step = math.ceil(place.doublings / 6)
    for doubling in range(0, place.doublings + 1, step):
        size = place.smallest * 2**doubling
        x = place.across(size)
        sheet.line([(x, _TOP), (x, bottom)], style.PALE)
        sheet.write(x, bottom + 15, _size(size), align="center", colour=style.GREY, size=9)
    sheet.line([(_LEFT, _TOP), (_LEFT, bottom), (_LEFT + _WIDTH, bottom)])
    sheet.write(_LEFT + _WIDTH / 2, bottom + 30, "size of the whole tensor", align="center")
    sheet.write(0, 30, "time of one call (both axes logarithmic)", colour=style.GREY)


def _marks(sheet: Sheet, place: _Scale, result: RingOrTree) -> None:
    """The crossover and the chosen size, as vertical lines."""
    crossing = result.crossover_bytes
    if crossing and place.holds(crossing):
        x = place.across(crossing)
        sheet.line([(x, _TOP), (x, _TOP + _HEIGHT)], style.GREY, dashed=True)
        text, own = f"crossover {_size(crossing)}", place.across(result.size_bytes)
        on_the_right = own <= x if abs(own - x) < 120 else x < _LEFT + _WIDTH / 2
        side = "left" if on_the_right and x < _LEFT + _WIDTH - 120 else "right"
        shift = -5 if side == "right" else 5
        sheet.write(x + shift, _TOP + 14, text, align=side, colour=style.GREY)
    x = place.across(result.size_bytes)
    sheet.line([(x, _TOP - 8), (x, _TOP + _HEIGHT)])
    side = "right" if x > _LEFT + _WIDTH / 2 else "left"
    sheet.write(x, _TOP - 12, f"your size: {_size(result.size_bytes)}", align=side)


def _key(sheet: Sheet, result: RingOrTree, measured: bool) -> None:
    rows = [("ring", "ring", result.ring_steps, result.ring_s)]
    if result.tree_steps is not None and result.tree_s is not None:
        rows.append(("tree", result.tree, result.tree_steps, result.tree_s))
    line = _TOP + _HEIGHT + 52
    for kind, name, steps, time_s in rows:
        colour, dashed = _LOOKS[kind]
        sheet.line([(_LEFT, line - 4), (_LEFT + 34, line - 4)], colour, 2, dashed)
        sheet.write(_LEFT + 42, line, f"{name}, {counted(steps, 'step')}")
        sheet.write(_LEFT + 190, line, f"{format_seconds(time_s)} at your size")
        line += 18
    note = "dots: measured, lines: α–β model" if measured else _crossing(result)
    sheet.write(WIDTH_PT - 18, line, note, align="right", colour=style.GREY)


def _size(size_bytes: float) -> str:
    digits = 0 if size_bytes == int(size_bytes) and int(size_bytes).bit_count() == 1 else 2
    return format_bytes(size_bytes, "GiB", digits)
