"""What is in the memory of a GPU, consumer by consumer, and whether it fits."""

from collections.abc import Mapping

from course_lib.figures.engines.bars import Bar, Bars, Limit, stacked_bars
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.states import MemoryBreakdown

_UNIT_WORDS = {"GB": "1 GB = 10⁹ bytes", "GiB": "1 GiB = 2³⁰ bytes"}
_LOOKS: Mapping[str, style.Look] = {
    "weights": (style.WEIGHTS, None),
    "gradients": (style.GRADIENTS, None),
    "optimizer": (style.STATES, None),
    "inputs and labels": (style.ACTIVATIONS, "/"),
    "intermediate results": (style.ACTIVATIONS, None),
    "temporary buffers": (style.TEMPORARY, None),
    "framework overhead": (style.PALE, None),
}


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
    return Bars(rows, _LOOKS, limits=limits, sentence=sentence, note=note).alone(title)


def consumer_bars(
    bills: Mapping[str, MemoryBreakdown], title: str = "", capacity_bytes: float | None = None
) -> Drawing:
    """One bar for each name, made of its consumers, and the line that none may cross.

    Raises ValueError without a bill.
    """
    limit = None if capacity_bytes is None else ("what the GPU holds", capacity_bytes / 1e9)
    rows = {
        row: {name: size / 1e9 for name, size in bill.consumers.items()}
        for row, bill in bills.items()
    }
    return stacked_bars(rows, title, "{:.1f} GB".format, colours=_LOOKS, limit=limit)
