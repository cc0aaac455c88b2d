"""Figures of chapter 13, in addition to the library's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from course_lib.chapters.ch13_3d_planning.replay import MemoryTimeline
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lines import Curve, even, graph
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import GB, format_bytes

# --- passes -------------------------------------------------------------------------------------
# The memory of one pipeline stage over the passes of an update.


def memory_of_passes(run: MemoryTimeline, capacity_bytes: int, title: str = "") -> Drawing:
    """Draw a stage's memory after each pass, stacked; the peak and the GPU's memory as lines."""
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


# --- rank block ---------------------------------------------------------------------------------
# The ranks of a small mesh by their coordinates.


def rank_block(places: Sequence[Mapping[str, int]]) -> Drawing:
    """Draw ranks by `places[rank]`, with pp, dp and tp: stages side by side, tp across, dp down."""
    grid: dict[str, dict[str, Cell]] = {}
    for rank, at in enumerate(places):
        column = f"pp {at['pp']}\ntp {at['tp']}"
        grid.setdefault(f"dp {at['dp']}", {})[column] = Cell(str(rank), {0: "others"}, bold=True)
    neighbours = {  # from rank 0 to its neighbour along each axis
        axis: rank
        for axis in ("tp", "dp", "pp")
        for rank, at in enumerate(places)
        if sum(at.values()) == at[axis] == 1
    }
    strides = ", ".join(f"{stride} along {axis}" for axis, stride in neighbours.items())
    note = f"neighbours' numbers differ by {strides or 'nothing'}"
    return page("", Cells(grid, high=28.0, note=note))
