"""What is in the memory of a GPU, consumer by consumer, and whether it fits."""

from collections.abc import Mapping

from course_lib.figures.charts.stacked_bars import stacked_bars
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.breakdown import MemoryBreakdown

_LEFT = 128
_ROW = 24
_BAR = 16
_TOP = 48
_BARS_END = 440  # the number stands to the right of its bar
_UNIT_WORDS = {"GB": "1 GB = 10⁹ bytes", "GiB": "1 GiB = 2³⁰ bytes"}
_LOOKS: Mapping[str, tuple[str, str | None]] = {
    "weights": (style.WEIGHTS, None),
    "gradients": (style.GRADIENTS, None),
    "optimizer": (style.STATES, None),
    "inputs and labels": (style.ACTIVATIONS, "//"),
    "intermediate results": (style.ACTIVATIONS, None),
    "temporary buffers": (style.TEMPORARY, None),
    "framework overhead": (style.PALE, None),
}


def consumers(
    breakdown: MemoryBreakdown, unit: str = "GB", capacity_bytes: int | None = None, title: str = ""
) -> Sheet:
    """The seven consumers as bars on one scale, their stacked total, and the GPU's capacity.

    `unit` "GB" or "GiB"; `title` should name the model and the convention. Raises ValueError for
    another unit.
    """
    sizes = breakdown.consumers
    sheet = Sheet(298, sentence(breakdown, unit, capacity_bytes, title))
    sheet.title(title)
    sheet.write(0, 30, f"All bars on one scale; {_UNIT_WORDS[unit]}.", colour=style.GREY)
    scale = (_BARS_END - _LEFT) / max(breakdown.total_bytes, capacity_bytes or 0, 1)
    for row, (name, size) in enumerate(sizes.items()):
        y = _TOP + row * _ROW
        sheet.write(_LEFT - 8, y + 12, name, align="right")
        sheet.boxes([(_LEFT, y, size * scale, _BAR)], *_LOOKS[name])
        sheet.write(_LEFT + size * scale + 6, y + 12, format_bytes(size, unit))
    _total(sheet, breakdown, unit, scale)
    if capacity_bytes is not None:
        _capacity(sheet, breakdown, capacity_bytes, unit, scale)
    return sheet


def consumer_bars(
    bills: Mapping[str, MemoryBreakdown], title: str = "", capacity_bytes: float | None = None
) -> Drawing:
    """One bar for each name, made of its consumers, and the line that none may cross.

    Inputs and labels are counted with the intermediate results. Raises ValueError without a bill.
    """
    colours = {name: _LOOKS[name][0] for name in _LOOKS if name != "inputs and labels"}
    rows = {row: bill.consumers for row, bill in bills.items()}
    for sizes in rows.values():  # without hatches these two look alike
        sizes["intermediate results"] += sizes.pop("inputs and labels")
    limit = None if capacity_bytes is None else ("what the GPU holds", capacity_bytes / 1e9)
    told = "{:.1f} GB".format
    in_gb = {row: {name: size / 1e9 for name, size in its.items()} for row, its in rows.items()}
    return stacked_bars(in_gb, title, told, colours=colours, limit=limit)


def sentence(
    breakdown: MemoryBreakdown, unit: str, capacity_bytes: int | None, title: str = ""
) -> str:
    """The total, the largest consumer, and whether it fits, in words."""
    sizes = breakdown.consumers
    largest = max(sizes, key=sizes.__getitem__)
    start = f"{title}: " if title else ""
    text = (
        f"{start}{format_bytes(breakdown.total_bytes, unit)} in all; the largest consumer is "
        f"{largest} with {format_bytes(sizes[largest], unit)}"
    )
    if capacity_bytes is None:
        return text + "."
    return f"{text}; {_verdict(breakdown, capacity_bytes)} in {format_bytes(capacity_bytes, unit)}."


def _verdict(breakdown: MemoryBreakdown, capacity_bytes: int) -> str:
    return "it fits" if breakdown.total_bytes <= capacity_bytes else "it does not fit"


def _total(sheet: Sheet, breakdown: MemoryBreakdown, unit: str, scale: float) -> None:
    y = _TOP + 7 * _ROW + 14
    sheet.write(_LEFT - 8, y + 16, "total", align="right", bold=True)
    x = float(_LEFT)
    for name, size in breakdown.consumers.items():
        sheet.boxes([(x, y, size * scale, _BAR + 6)], *_LOOKS[name])
        x += size * scale
    sheet.write(x + 6, y + 16, format_bytes(breakdown.total_bytes, unit), bold=True)


def _capacity(
    sheet: Sheet, breakdown: MemoryBreakdown, capacity_bytes: int, unit: str, scale: float
) -> None:
    """A line across the total; its label stays inside the picture."""
    x = _LEFT + capacity_bytes * scale
    y = _TOP + 7 * _ROW + 6
    sheet.line([(x, y), (x, y + 42)], style.INK, 2.5)
    verdict = _verdict(breakdown, capacity_bytes)
    text = f"this GPU holds {format_bytes(capacity_bytes, unit)}: {verdict}"
    align = "left" if x < WIDTH_PT / 2 else "right"
    fits = breakdown.total_bytes <= capacity_bytes
    ink = style.INK if fits else style.WARNING_TEXT
    sheet.write(x, y + 54, text, align=align, colour=ink, bold=True)
