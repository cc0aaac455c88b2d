"""Figures of chapter 3, beside those of the library."""

import math
from collections.abc import Mapping
from pathlib import Path

from course_lib.chapters.ch03_what_is_in_the_memory.snapshot import read_snapshot
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.bars import Bar, Bars, Limit
from course_lib.figures.engines.lines import Axis, Frame, powers
from course_lib.figures.memory import CONSUMER_LOOKS, LEFT, PANEL_PT, Panel
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, key, key_height
from course_lib.theory.inputs.units import format_bytes, power_of_ten
from course_lib.theory.memory.states import MemoryBreakdown

# --- How far the numbers of each format reach, on one scale of powers of ten ----------------------

_LEFT, _RIGHT, _TOP, _ROW, _BAR, _MARK = 92.0, WIDTH_PT - 24, 24.0, 24.0, 15.0, 14.0
_KEY = {"all digits": style.BLUE, "fewer digits (subnormal)": style.YELLOW}
Range = tuple[float, float, float]


def number_ranges(
    formats: Mapping[str, Range], title: str, marks: Mapping[str, float] | None = None
) -> Drawing:
    """{"fp16": (smallest above 0, smallest with all digits, largest)}: a bar for each.

    Subnormal numbers, which lack digits, are yellow; `marks` are named vertical lines.
    """
    named = marks or {}
    every = [*named.values(), *(end for row in formats.values() for end in row)]
    top = _TOP + _MARK * len(named)
    bottom = top + _ROW * len(formats)
    drawing = Drawing(bottom + 26 + key_height(_KEY, _LEFT), _sentence(formats, title, named))
    drawing.title(title)
    # Whole tens of powers around all values, so that the ticks are such as well.
    tens = [math.floor(math.log10(min(every)) / 10), math.floor(math.log10(max(every)) / 10) + 1]
    axis = powers([10.0 ** (10 * ten) for ten in tens], _power, most=10)
    frame = Frame(drawing, axis, Axis(()), _LEFT, top, _RIGHT, bottom)
    frame.ticks_across()
    for row, (name, values) in enumerate(formats.items()):
        y = top + _ROW * (row + 0.5) - _BAR / 2
        start, full, end = map(frame.x, values)
        drawing.write(_LEFT - 8, y + 12, name, align="right")
        drawing.boxes([(start, y, full - start, _BAR)], style.YELLOW)
        drawing.boxes([(full, y, end - full, _BAR)], style.BLUE)
    frame.marks(named)
    key(drawing, _KEY, _LEFT, bottom + 24)
    return drawing


def _power(value: float) -> str:
    return power_of_ten(round(math.log10(value)))


def _sentence(formats: Mapping[str, Range], title: str, named: Mapping[str, float]) -> str:
    rows = []
    for name, values in formats.items():
        least, full, most = map(_power, values)
        rows.append(f"{name} reaches from {least} to {most}, with all digits from {full}")
    marks = (f"{name} is at {_power(at)}" for name, at in named.items())
    return f"{title}. Powers of ten, rounded. {'; '.join([*rows, *marks])}."


# --- A memory snapshot of torch, sorted into the course's seven consumers -------------------------

_LEAKS = 3  # of more the largest are written
_PLACE = 45  # letters that fit behind the numbers


def snapshot(path: str | Path) -> Drawing:
    """What torch.cuda.memory._dump_snapshot(path) wrote: bytes over time, and leaks.

    The file is read without running anything in it. Raises ValueError for a file that is no
    snapshot, and FileNotFoundError.
    """
    found = read_snapshot(Path(path).read_bytes())
    panel = Panel(Path(path).name, found)
    lines = [
        f"{format_bytes(leak.size_bytes)} in {leak.blocks} blocks never freed: "
        + (leak.where if len(leak.where) <= _PLACE else leak.where[: _PLACE - 1] + "…")
        for leak in found.leaks[:_LEAKS]
    ]
    sentence = "; ".join([panel.sentence(), *lines])
    drawing = Drawing(PANEL_PT + 16 * len(lines), f"{sentence}.")
    panel.draw(drawing, 0, max(panel.peak_bytes, 1))
    for row, line in enumerate(lines):
        y = PANEL_PT + 16 * row
        drawing.boxes([(LEFT, y, 9, 9)], style.WARNING)
        drawing.write(LEFT + 13, y + 8, line, size=9)
    return drawing


# --- What is in the memory of a GPU, consumer by consumer, and whether it fits --------------------

_UNIT_WORDS = {"GB": "1 GB = 10⁹ bytes", "GiB": "1 GiB = 2³⁰ bytes"}


def consumers(
    breakdown: MemoryBreakdown, unit: str = "GB", capacity_bytes: int | None = None, title: str = ""
) -> Drawing:
    """The seven consumers as bars on one scale, their stacked total, and the GPU's capacity.

    `unit` "GB" or "GiB"; `title` should name the model and the convention. Raises ValueError for
    another unit.
    """
    sizes, total = breakdown.consumers, format_bytes(breakdown.total_bytes, unit)
    rows = [Bar(name, {name: it}, format_bytes(it, unit), 16, 24) for name, it in sizes.items()]
    rows.append(Bar("total", sizes, total, 22, 28, bold=True, chosen=True))
    largest = max(sizes, key=sizes.__getitem__)
    most = f"the largest consumer is {largest} with {format_bytes(sizes[largest], unit)}"
    words, limits = [f"{total} in all", most], list[Limit]()
    if capacity_bytes is not None:
        fits, holds = breakdown.total_bytes <= capacity_bytes, format_bytes(capacity_bytes, unit)
        verdict = "it fits" if fits else "it does not fit"
        words.append(f"{verdict} in {holds}")
        limits = [Limit(f"this GPU holds {holds}: {verdict}", capacity_bytes, not fits)]
    sentence = f"{title}: " * bool(title) + "; ".join(words) + "."
    note = f"All bars on one scale; {_UNIT_WORDS[unit]}."
    return Bars(rows, CONSUMER_LOOKS, limits=limits, sentence=sentence, note=note).alone(title)
