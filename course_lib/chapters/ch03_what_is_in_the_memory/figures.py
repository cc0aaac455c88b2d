"""Figures of chapter 3, in addition to those of the library."""

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

# --- The range of each number format, on one scale of powers of ten -------------------------------

_LEFT, _RIGHT, _TOP, _ROW, _BAR, _MARK = 92.0, WIDTH_PT - 24, 24.0, 24.0, 15.0, 14.0
_KEY = {"all digits": style.BLUE, "fewer digits (subnormal)": style.YELLOW}
Range = tuple[float, float, float]


def number_ranges(
    formats: Mapping[str, Range], title: str, marks: Mapping[str, float] | None = None
) -> Drawing:
    """Draw a bar for each format: {"fp16": (smallest above 0, smallest normal, largest)}.

    The range of subnormal numbers, which lack digits, is yellow; `marks` are named vertical lines.
    """
    positions = marks or {}
    reach = [*positions.values(), *(end for row in formats.values() for end in row)]
    top = _TOP + _MARK * len(positions)
    bottom = top + _ROW * len(formats)
    drawing = Drawing(bottom + 26 + key_height(_KEY, _LEFT), _sentence(formats, title, positions))
    drawing.title(title)
    # Exponents rounded outwards to multiples of ten, so that the ticks fall on such multiples too.
    tens = [math.floor(math.log10(min(reach)) / 10), math.floor(math.log10(max(reach)) / 10) + 1]
    axis = powers([10.0 ** (10 * ten) for ten in tens], _power, most=10)
    frame = Frame(drawing, axis, Axis(()), _LEFT, top, _RIGHT, bottom)
    frame.ticks_across()
    for row, (name, values) in enumerate(formats.items()):
        y = top + _ROW * (row + 0.5) - _BAR / 2
        start, full, end = map(frame.x, values)
        drawing.write(_LEFT - 8, y + 12, name, align="right")
        drawing.boxes([(start, y, full - start, _BAR)], style.YELLOW)
        drawing.boxes([(full, y, end - full, _BAR)], style.BLUE)
    frame.marks(positions)
    key(drawing, _KEY, _LEFT, bottom + 24)
    return drawing


def _power(value: float) -> str:
    return power_of_ten(round(math.log10(value)))


def _sentence(formats: Mapping[str, Range], title: str, positions: Mapping[str, float]) -> str:
    rows = []
    for name, values in formats.items():
        least, full, most = map(_power, values)
        rows.append(f"{name} reaches from {least} to {most}, with all digits from {full}")
    marks = (f"{name} is at {_power(at)}" for name, at in positions.items())
    return f"{title}. Powers of ten, rounded. {'; '.join([*rows, *marks])}."


# --- A memory snapshot of torch, sorted into the course's seven consumers -------------------------

_LEAKS = 3  # only the largest ones are listed
_LETTERS = 45  # letters that fit after the numbers


def snapshot(path: str | Path) -> Drawing:
    """Draw a file of torch.cuda.memory._dump_snapshot(path): bytes over time, and leaks.

    Nothing in the file is executed. Raises ValueError for a file that is no snapshot, and
    FileNotFoundError for a missing one.
    """
    contents = read_snapshot(Path(path).read_bytes())
    panel = Panel(Path(path).name, contents)
    lines = [
        f"{format_bytes(leak.size_bytes)} in {leak.blocks} blocks never freed: "
        + (leak.where if len(leak.where) <= _LETTERS else leak.where[: _LETTERS - 1] + "…")
        for leak in contents.leaks[:_LEAKS]
    ]
    sentence = "; ".join([panel.sentence(), *lines])
    drawing = Drawing(PANEL_PT + 16 * len(lines), f"{sentence}.")
    panel.draw(drawing, 0, max(panel.peak_bytes, 1))
    for row, line in enumerate(lines):
        y = PANEL_PT + 16 * row
        drawing.boxes([(LEFT, y, 9, 9)], style.WARNING)
        drawing.write(LEFT + 13, y + 8, line, size=9)
    return drawing


# --- Memory of a GPU by consumer, and whether it fits ---------------------------------------------

_UNIT_WORDS = {"GB": "1 GB = 10⁹ bytes", "GiB": "1 GiB = 2³⁰ bytes"}


def consumers(
    breakdown: MemoryBreakdown, unit: str = "GB", capacity_bytes: int | None = None, title: str = ""
) -> Drawing:
    """Draw the seven consumers as bars on one scale, their stacked total, and the GPU's capacity.

    `unit` is "GB" or "GiB"; `title` should name the model and the convention. Raises ValueError
    for any other unit.
    """
    sizes, total = breakdown.consumers, format_bytes(breakdown.total_bytes, unit)
    rows = [Bar(name, {name: n}, format_bytes(n, unit), 16, 24) for name, n in sizes.items()]
    rows.append(Bar("total", sizes, total, 22, 28, bold=True, chosen=True))
    largest = max(sizes, key=sizes.__getitem__)
    largest_text = f"the largest consumer is {largest} with {format_bytes(sizes[largest], unit)}"
    words, limits = [f"{total} in all", largest_text], list[Limit]()
    if capacity_bytes is not None:
        fits, capacity = breakdown.total_bytes <= capacity_bytes, format_bytes(capacity_bytes, unit)
        verdict = "it fits" if fits else "it does not fit"
        words.append(f"{verdict} in {capacity}")
        limits = [Limit(f"this GPU holds {capacity}: {verdict}", capacity_bytes, not fits)]
    sentence = f"{title}: " * bool(title) + "; ".join(words) + "."
    note = f"All bars on one scale; {_UNIT_WORDS[unit]}."
    return Bars(rows, CONSUMER_LOOKS, limits=limits, sentence=sentence, note=note).alone(title)
