"""Figures of chapter 9, in addition to the library's."""

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from course_lib.chapters.ch09_fsdp.gather_timeline import GatherTimeline
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells, cells
from course_lib.figures.engines.lanes import Lanes, Levels, level
from course_lib.figures.engines.lines import Curve, even, graph
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.theory.inputs.units import GB, KB, MB, format_bytes, format_number
from course_lib.theory.memory.unit_life import COMPUTES, GRADIENTS, ROOT, WEIGHTS
from course_lib.theory.network.zero import shard

# --- buffers ------------------------------------------------------------------------------------
# Which layer each buffer holds while a layer computes: the two pairs of YaFSDP.


_BUFFERS = ("weights, even", "weights, odd", "gradients, even", "gradients, odd")
_WORDS = ("gathered weights", "gathered weights", "gradients", "gradients")


def two_buffers(moments: Sequence[Any], title: str = "") -> Drawing:
    """Draw a column for each moment: the layer that computes, and the four buffers below it.

    A moment has a `phase`, "forward" or "backward", a `layer`, and in `weights` and `gradients` the
    layers that the even and the odd buffer hold, None for an empty one.
    """
    grid: dict[str, dict[str, Cell]] = {row: {} for row in ("computes", *_BUFFERS)}
    for number, moment in enumerate(moments, 1):
        column = f"{moment.phase}\n{number}"
        grid["computes"][column] = Cell(str(moment.layer), {0: moment.phase}, bold=True)
        held = (*moment.weights, *moment.gradients)
        for buffer, layer, word in zip(_BUFFERS, held, _WORDS, strict=True):
            if layer is not None:
                bold = layer == moment.layer
                grid[buffer][column] = Cell(str(layer), {0: word}, bold=bold)
    bold = (
        "bold: the layer that computes; in other buffers meanwhile: weights of the layer to come,"
    )
    return page(title, Cells(grid, gap=2.0), notes=[bold, "gradients of the layer before"])


# --- gathering ----------------------------------------------------------------------------------
# The memory of fully sharded data parallelism during a step: predicted and measured.


_ENDS_SHOWN = 3  # layers drawn at each end of a deep model; those in between look the same
_POINTS = 80  # of a measured curve: more make no visible difference
_STATES = "states of the shard"


def gather_memory(result: GatherTimeline, title: str = "") -> Drawing:
    """Draw bytes of shards, whole weights and whole gradients, stacked, after each change.

    For a deep model only the first and last three layers are drawn.
    """
    shown = _shown(result)
    position = {number: float(at) for at, number in enumerate(shown)}
    over = (0.0, float(len(shown)))
    passes = [event for event in result.trace if event.what in COMPUTES and event.at in position]
    computing, start = [], 0.0
    for event in passes:
        if event.part != ROOT:
            end = position[_end(result, event.what, int(event.label))] + 1
            computing.append(event._replace(at=start, end=end))
            start = end
    turn = next(position[event.at] for event in passes if event.what == "backward")
    kinds = {WEIGHTS: result.peak_weights_bytes, GRADIENTS: result.peak_gradients_bytes}
    levels = {_STATES: [(0.0, float(result.states_bytes))]} | {
        kind: [(position[number], level(sizes, number)) for number in shown]
        for kind, sizes in ((kind, result.levels((kind,))) for kind in kinds)
    }
    gaps = [position[after] for before, after in pairwise(shown) if after > before + 1]
    marks = {"forward": 0.0, "backward": turn} | dict(zip(("…", "… "), gaps, strict=False))
    lanes = Lanes({"layer": computing}, over=over, foot=False, marks=marks)
    curve = Levels(levels, over=over, name="one GPU", high=150)
    most = " and ".join(f"{format_bytes(size)} of {kind}" for kind, size in kinds.items())
    held = f"{format_bytes(result.states_bytes)} of shards all the time; at most {most}"
    peak = f"the peak is {format_bytes(result.peak_bytes)}, without activations"
    between = result.layers - 2 * _ENDS_SHOWN
    order = "changes in their order, not to scale in time"
    order = f"{counted(between, 'layer')} between are left out" if between > 0 else order
    sent = f"{counted(result.all_gathers, 'all-gather')} and "
    sent += f"{counted(result.reduce_scatters, 'reduce-scatter')} in a step"
    named = f"{title}: " if title else ""
    return page(title, curve, lanes, key=[*levels], notes=[f"{held};", f"{peak}; {order}"],
                sentence=f"{named}{held}; {peak}; {sent}")  # fmt: skip


def _shown(result: GatherTimeline) -> list[float]:
    """Numbers of the changes to draw: those of the first and the last layers."""
    first, last = _ENDS_SHOWN, result.layers - _ENDS_SHOWN
    hidden = {what: [_end(result, what, unit) for unit in units]
            for what, units in (("forward", (first, last)), ("backward", (last + 1, first + 1)))
            if last > first}  # fmt: skip
    return [
        number
        for number in dict.fromkeys(event.at for event in result.trace)
        if not any(start < number <= end for start, end in hidden.values())
    ]


def _end(result: GatherTimeline, what: str, unit: int) -> float:
    """Number of the last change of a unit's pass, with its frees and the start of its reduction."""
    started = next(e.at for e in result.trace if (e.what, e.part) == (what, unit))
    turn = next(e.at for e in result.trace if e.what == "backward")
    parts = (unit, (WEIGHTS, unit), (GRADIENTS, unit))
    return max(
        event.at
        for event in result.trace
        if event.part in parts and event.at >= started and (what == "backward" or event.at < turn)
    )


def measured_memory(timelines: Mapping[str, Sequence[int]]) -> Drawing:
    """Draw measured bytes after each change (a MemoryLog's timeline), a curve for each version."""
    unit, name = _unit(max(map(max, timelines.values())))
    curves = {}
    for (key, values), (colour, dashed) in zip(timelines.items(), cycle(style.LINES), strict=False):
        peak = f"peak {format_number(max(values) / unit)} {name}"
        points = [(x, size / unit) for x, size in _thinned(values)]
        curves[key] = Curve(points, colour, peak, dashed, width=1.6)
    top = max(y for curve in curves.values() for _, y in curve.points)
    words = "part of the forward and backward pass, in % of all changes"
    up = even([0, top], label=f"{name} in tensors")
    title = "Measured in a forward and backward pass"
    return graph(curves, title, even([0, 100], label=words), up).drawing


def _unit(largest: float) -> tuple[int, str]:
    """The largest unit, as (bytes, name), in which the value is at least 1; else kB."""
    return next(((u, n) for u, n in ((GB, "GB"), (MB, "MB")) if largest >= u), (KB, "kB"))


def _thinned(values: Sequence[int]) -> list[tuple[float, int]]:
    """(start in percent, highest value) of each of at most _POINTS equal stretches of `values`."""
    size = max(1, -(-len(values) // _POINTS))
    last = max(len(values) - 1, 1)
    return [(100 * at / last, max(values[at : at + size])) for at in range(0, len(values), size)]


# --- parts --------------------------------------------------------------------------------------
# How tensors are cut by rows, and how shard groups are placed on nodes.


def cut_rows(tensors: Mapping[str, tuple[int, int]], ranks: int) -> Drawing:
    """Draw each tensor, {name: (rows, columns)}, in a row: the whole one, then each rank's rows."""

    def rows(name: str, start: int, stop: int, zeros: int) -> Cell:
        count, columns = tensors[name]
        filled = dict.fromkeys(range(start * columns, stop * columns), name)
        end = (stop + zeros) * columns
        filled |= dict.fromkeys(range(stop * columns, end), "padding")
        return Cell("", filled, max(count * columns, end), columns)

    grid = {}
    for name, (count, _) in tensors.items():
        grid[name] = {"whole": rows(name, 0, count, 0)}
        for rank in range(ranks):
            part = shard(count, ranks, rank)
            grid[name][f"rank {rank}"] = rows(name, part.start, part.stop, part.zeros)
    title = f"Each tensor by itself, cut by rows over {counted(ranks, 'rank')}"
    return page(title, Cells(grid, square=13, looks=style.looks([*tensors])))


def shard_groups(strategies: Mapping[str, int], nodes: int, per_node: int) -> Drawing:
    """Draw a column for each GPU, filled where it holds the layer: {strategy: shard group size}.

    In a group of g ranks each holds 1/g, rank r the part number r mod g.
    """
    names = [f"node {node}\nGPU {gpu}" for node in range(nodes) for gpu in range(per_node)]
    grid = {}
    for name, group in strategies.items():
        part = "all of it" if group == 1 else f"1/{group} on each GPU"
        grid[f"{name}\n{part}"] = {
            gpu: Cell("", {rank % group: "weights"}, group, 1) for rank, gpu in enumerate(names)
        }
    return cells(grid, high=36.0)
