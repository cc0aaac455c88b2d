"""Figures of chapter 13, beside those of the library."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from course_lib.chapters.ch13_3d_planning.replay import MemoryTimeline
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.lines import Curve, even, graph
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, Point, counted
from course_lib.theory.inputs.units import GB, format_bytes

# --- passes -------------------------------------------------------------------------------------
# The memory of one pipeline stage over its passes, from beginning to end of an update.


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


# --- rank block ---------------------------------------------------------------------------------
# The ranks of a small mesh as a block: one direction for each axis.


_AXES = ("tp", "dp", "pp")
_LEFT, _TOP, _BOX = 130.0, 42.0, 28.0
# From a rank to its neighbour along each axis: to the right, down, and to the back.
_STEPS = {"tp": (190.0, 0.0), "dp": (0.0, 92.0), "pp": (95.0, 40.0)}
Place = Mapping[str, int]


def rank_block(places: Sequence[Place]) -> Drawing:
    """`places[rank]` holds pp, dp and tp, of 1 or 2 each; lines join neighbours."""
    size = {axis: 1 + max(place[axis] for place in places) for axis in _AXES}
    strides = dict(_strides(places))
    bottom = max(_centre(place)[1] for place in places)
    drawing = Drawing(bottom + _BOX, _sentence(size, strides))
    for axis in _AXES:
        ends = [(a, b) for a in places for b in places if _next(a, b, axis)]
        drawing.lines([(_centre(a), _centre(b)) for a, b in ends], style.AXES[axis], 4)
    for rank, place in enumerate(places):
        x, y = _centre(place)
        drawing.boxes([(x - _BOX / 2, y - _BOX / 2, _BOX, _BOX)], style.PALE)
        drawing.write(x, y + 4, str(rank), align="center", bold=True)
    (across, _), (_, down), (back, lower) = _STEPS.values()
    beside = _LEFT + (size["tp"] - 1) * across + back / 2  # the line to the back, from the right
    spots = {
        "tp": (_LEFT + across / 2, _TOP - 8, "center"),
        "dp": (_LEFT - 10, _TOP + down / 2 + 4, "right"),
        "pp": (beside, _TOP + lower / 2 - 10, "left"),
    }
    for axis, stride in strides.items():
        x, y, align = spots[axis]
        drawing.write(x, y, f"{axis}: + {stride}", align=align)
    return drawing


def _centre(place: Place) -> Point:
    x, y = (sum(place[axis] * step[way] for axis, step in _STEPS.items()) for way in (0, 1))
    return _LEFT + x, _TOP + y


def _next(one: Place, other: Place, axis: str) -> bool:
    """Whether `other` follows `one` along this axis."""
    return all(other[each] == one[each] + (each == axis) for each in _AXES)


def _strides(places: Sequence[Place]) -> Iterator[tuple[str, int]]:
    """From rank 0 to its neighbour along each axis that has one."""
    for axis in _AXES:
        for rank, place in enumerate(places):
            if _next(places[0], place, axis):
                yield axis, rank


def _sentence(size: Mapping[str, int], strides: Mapping[str, int]) -> str:
    mesh = " × ".join(f"{axis} {size[axis]}" for axis in reversed(_AXES))
    count = size["tp"] * size["dp"] * size["pp"]
    apart = ", ".join(f"{stride} along {axis}" for axis, stride in strides.items())
    return (
        f"{counted(count, 'rank')} as {mesh}. Neighbours' numbers differ by {apart or 'nothing'}."
    )
