"""What sharded data parallelism holds while it computes: predicted by the theory, and measured."""

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import NamedTuple

from course_lib.figures.engines.axis import Axis, even
from course_lib.figures.engines.lines import Curve, graph
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import GB, KB, MB, format_bytes, format_number
from course_lib.theory.memory.gather_timeline import ROOT, GatherTimeline

_ENDS_SHOWN = 3  # layers at each end of a deep model; those between look the same
_NUMBER_PT = 18.0  # from one layer's number to the next
_WIDTH_PT = 440.0
_POINTS = 80  # of a measured line: more cannot be told apart


class _Change(NamedTuple):
    """What is whole from then on; the layer that computes, and whether it does just now."""

    weights_bytes: int
    gradients_bytes: int
    phase: str
    layer: int
    computes: bool


def gather_memory(result: GatherTimeline, title: str = "") -> Drawing:
    """Shards, whole weights and whole gradients on top of each other, change by change.

    For a deep model only the first and last three layers are drawn.
    """
    last, deep = result.layers - _ENDS_SHOWN, result.layers > 2 * _ENDS_SHOWN
    shown = [it for it in _changes(result) if not (deep and _ENDS_SHOWN < it.layer <= last)]
    unit, name = _unit(result.peak_bytes)
    parts = {
        "shards of weights, gradients, optimizer": (
            style.STATES, result.states_bytes, [result.states_bytes] * len(shown)),
        "whole weights, at most": (
            style.TEMPORARY, result.peak_weights_bytes, [it.weights_bytes for it in shown]),
        "whole gradients, at most": (
            style.GRADIENTS, result.peak_gradients_bytes, [it.gradients_bytes for it in shown]),
    }  # fmt: skip
    curves = {
        what: Curve(
            [(place, size / unit) for place, size in enumerate(sizes)],
            told=format_bytes(most),
            fill=fill,
        )
        for what, (fill, most, sizes) in parts.items()
    }
    turn = next(place for place, it in enumerate(shown) if it.phase == "backward")
    words = "layer that computes; events in their order, not to scale in time"
    if deep:
        words = f"layer that computes; {counted(last - _ENDS_SHOWN, 'layer')} between are left out"
    across = Axis(*_numbers(shown), words, ends=(0, len(shown)))
    up = even([0, 1.02 * result.peak_bytes / unit], label=f"{name} of one GPU, without activations")
    marks = {"from here on backward": turn}
    levels = {f"peak {format_bytes(result.peak_bytes)}": result.peak_bytes / unit}
    calls = (
        f"{counted(result.all_gathers, 'all-gather')} and "
        f"{counted(result.reduce_scatters, 'reduce-scatter')} in a step"
    )
    notes = [calls]
    frame = graph(curves, title, across, up, marks=marks, levels=levels, notes=notes)
    for place, (before, it) in enumerate(pairwise(shown), 1):
        if abs(it.layer - before.layer) > 1 and deep and ROOT not in (it.layer, before.layer):
            x = frame.x(place)  # the layers between
            frame.drawing.line([(x, frame.top), (x, frame.bottom)], style.WHITE, 2.5)
    return frame.drawing


def _changes(result: GatherTimeline) -> list[_Change]:
    """While a layer computes, the next one is fetched."""
    return [
        _Change(
            it.weights_bytes,
            it.gathered_bytes - it.weights_bytes,
            it.phase,
            it.unit - (it.action == "fetch") * (1 if it.phase == "forward" else -1),
            it.action == "compute" and it.unit != ROOT,
        )
        for it in result.events
    ]


def _numbers(shown: Sequence[_Change]) -> tuple[list[float], "_Told"]:
    """Where the numbers of layers stand, as many as there is room for, and what they are."""
    step, told, free = _WIDTH_PT / len(shown), dict[float, str](), 0.0
    for place, it in enumerate(shown):
        if it.computes and (place + 0.5) * step >= free:
            told[place + 0.5] = str(it.layer)
            free = (place + 0.5) * step + _NUMBER_PT
    return list(told), _Told(told)


class _Told(dict[float, str]):
    __call__ = dict.__getitem__


def measured_memory(timelines: Mapping[str, Sequence[int]]) -> Drawing:
    """Measured bytes after each change (a MemoryLog's timeline), one line for each version.

    Raises ValueError when there is no line or one without values.
    """
    if not timelines or not all(len(values) for values in timelines.values()):
        raise ValueError("timelines must hold at least one value each: give {name: [bytes, …]}")
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
    """The unit in which the largest value is at least 1, or kB."""
    return next(((u, n) for u, n in ((GB, "GB"), (MB, "MB")) if largest >= u), (KB, "kB"))


def _thinned(values: Sequence[int]) -> list[tuple[float, int]]:
    """Places in percent and the highest value of each of at most _POINTS stretches."""
    size = max(1, -(-len(values) // _POINTS))
    last = max(len(values) - 1, 1)
    return [(100 * at / last, max(values[at : at + size])) for at in range(0, len(values), size)]
