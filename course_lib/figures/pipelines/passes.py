"""The memory of one pipeline stage over its passes, from beginning to end of an update."""

from dataclasses import replace

from course_lib.figures.engines.axis import even
from course_lib.figures.engines.lines import Curve, graph
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import GB, format_bytes
from course_lib.theory.memory.replay import MemoryTimeline


def memory_of_passes(run: MemoryTimeline, capacity_bytes: int, title: str = "") -> Drawing:
    """What a stage holds after each pass, stacked; the peak and the GPU's memory as lines."""
    parts = {
        "always there": (style.STATES, [run.always.total_bytes] * len(run.passes)),
        "activations": (style.ACTIVATIONS, [it.activations_bytes for it in run.passes]),
        "gradients that come and go": (
            style.GRADIENTS, [it.gradients_bytes for it in run.passes]),
    }  # fmt: skip
    curves = {
        name: Curve(
            [(number, size / GB) for number, size in enumerate(sizes)],
            told=f"at most {format_bytes(max(sizes))}",
            fill=fill,
        )
        for name, (fill, sizes) in parts.items()
    }
    worst, fits = run.passes[run.fullest], run.peak_bytes <= capacity_bytes
    peak = (
        f"peak {format_bytes(run.peak_bytes, digits=1)}: pass {run.fullest + 1}, {worst.kind} of "
        f"micro-batch {worst.micro_batch}"
    )
    holds = f"this GPU holds {format_bytes(capacity_bytes, digits=1)}: "
    holds += "it fits" if fits else "it does not fit"
    levels = {peak: run.peak_bytes / GB, holds: capacity_bytes / GB}
    passes = len(run.passes)
    across = replace(even([0, passes], label="passes", whole=True, most=9), ends=(0, passes))
    up = even([0, 1.08 * max(levels.values())], label="GB")
    return graph(curves, title, across, up, levels=levels).drawing
