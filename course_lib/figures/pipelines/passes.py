"""The memory of one pipeline stage over its passes, from beginning to end of an update."""

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import GB, format_bytes
from course_lib.theory.memory.replay import MemoryTimeline

_LOOKS = (
    ("always there", style.STATES),
    ("activations", style.ACTIVATIONS),
    ("gradients that come and go", style.GRADIENTS),
)


def memory_of_passes(run: MemoryTimeline, capacity_bytes: int, title: str = "") -> Sheet:
    """What a stage holds after each pass, stacked; the peak and the GPU's memory as lines."""
    sheet = Sheet(300, sentence(run, capacity_bytes, title))
    sheet.title(title)
    axes = sheet.add_axes((0.09, 0.15, 0.88, 0.62))
    parts = [
        [run.always.total_bytes / GB] * len(run.passes),
        [it.activations_bytes / GB for it in run.passes],
        [it.gradients_bytes / GB for it in run.passes],
    ]
    bottom = [0.0] * len(run.passes)
    numbers = range(1, len(run.passes) + 1)
    for (name, fill), sizes in zip(_LOOKS, parts, strict=True):
        top = [low + size for low, size in zip(bottom, sizes, strict=True)]
        axes.fill_between(
            numbers, bottom, top, step="mid", label=name, facecolor=fill, edgecolor="none"
        )
        bottom = top
    lines = (
        (run.peak_bytes, "peak", "--"),
        (capacity_bytes, "this GPU", "-"),
    )
    for size, name, dashes in lines:
        label = f"{name}, {format_bytes(size, digits=1)}"
        axes.axhline(size / GB, label=label, color=style.INK, linestyle=dashes, linewidth=1.6)
    axes.set_xlim(1, max(2, len(run.passes)))
    axes.set_ylim(0, 1.05 * max(run.peak_bytes, capacity_bytes) / GB)
    axes.set_xlabel("pass", fontsize=style.TEXT_PT)
    axes.set_ylabel("GB", fontsize=style.TEXT_PT)
    axes.tick_params(labelsize=style.TEXT_PT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=9, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0))
    return sheet


def sentence(run: MemoryTimeline, capacity_bytes: int, title: str = "") -> str:
    """The parts, the peak and its pass in words."""
    start, worst = f"{title}: " if title else "", run.passes[run.fullest]
    activations = max(it.activations_bytes for it in run.passes)
    gradients = max(it.gradients_bytes for it in run.passes)
    fits = "fits" if run.peak_bytes <= capacity_bytes else "does not fit"
    return (
        f"{start}{format_bytes(run.always.total_bytes)} all the time, at most "
        f"{format_bytes(activations)} of activations and {format_bytes(gradients)} of gradients "
        f"that come and go; the peak of {format_bytes(run.peak_bytes)} is in pass "
        f"{run.fullest + 1} of {len(run.passes):,}, {worst.kind} of "
        f"micro-batch {worst.micro_batch}; it {fits} into {format_bytes(capacity_bytes)}."
    )
