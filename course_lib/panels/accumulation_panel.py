"""The panel of chapter 2: gradient accumulation and no_sync."""

from dataclasses import dataclass

from course_lib.figures.data import accumulation as figure
from course_lib.panels.controls import flag, powers_of_two, whole
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.network.buckets import gradient_syncs
from course_lib.theory.step.batching import Batching

_MODEL = "gpt2-124m"
_SHAPE = MODELS[_MODEL]


@dataclass(frozen=True)
class Accumulated:
    """What the theory says about one accumulated update."""

    batching: Batching
    all_reduces: int  # backward passes that all-reduce, for one update
    layer_bytes: int  # activations of one layer, one micro-batch at a time
    at_once_layer_bytes: int  # the same if the rank's samples went through in one piece


def accumulation(
    micro_batch: int = 4, accumulation: int = 4, dp: int = 2, no_sync: bool = True
) -> Panel:
    """Sliders for one update of data-parallel training; the result is an `Accumulated`.

    Raises ValueError for starting values outside the sliders.
    """
    controls = {
        "micro_batch": whole("micro-batch", micro_batch, 1, 64),
        "accumulation": whole("accumulation", accumulation, 1, 64),
        # From 2 up: a single rank has no other to exchange gradients with.
        "dp": powers_of_two("data parallel", dp, 2, 64),
        "no_sync": flag("no_sync", no_sync),
    }
    return Panel(controls, _view)


def _view(micro_batch: int, accumulation: int, dp: int, no_sync: bool) -> View:
    # One epoch of any length will do: only the first update is shown.
    batching = Batching(10**6, micro_batch, accumulation, gpus_per_node=dp)
    rank_samples = Batching(10**6, micro_batch, accumulation).global_batch
    syncs = {way: gradient_syncs(accumulation, accumulation, way) for way in (False, True)}
    result = Accumulated(
        batching,
        syncs[no_sync],
        _layer_bytes(micro_batch),
        _layer_bytes(rank_samples),
    )
    rows = _rows(result, no_sync)
    return View(result, rows, lambda: figure.window(batching, syncs, no_sync))


def _layer_bytes(samples: int) -> int:
    """Activations that one layer keeps for a micro-batch of `samples` samples."""
    job = Job(_SHAPE, Recipe(), Layout(micro_batch=samples), sequence=_SHAPE.context)
    return layer_activation_bytes(job)


def _rows(result: Accumulated, no_sync: bool) -> tuple[tuple[str, str], ...]:
    plan = result.batching
    layer = f"activations of one layer of {_MODEL}"
    return (
        (
            "global batch",
            f"micro-batch {plan.micro_batch} × accumulation {plan.accumulation} × dp {plan.dp}"
            f" = {plan.global_batch:,} samples",
        ),
        (
            "all-reduces per update",
            f"{result.all_reduces} {'with' if no_sync else 'without'} no_sync",
        ),
        (layer, f"{format_bytes(result.layer_bytes)}, whatever the accumulation"),
        ("the same without accumulation", format_bytes(result.at_once_layer_bytes)),
    )
