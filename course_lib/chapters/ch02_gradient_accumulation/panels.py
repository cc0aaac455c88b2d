"""Panels of chapter 2, in addition to those of the library."""

from dataclasses import dataclass

from course_lib.chapters.ch02_gradient_accumulation import figures
from course_lib.panels.controls import flag, powers_of_two, whole
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs import MODELS, Job, Layout, Recipe
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.network.bucket_timeline import gradient_syncs
from course_lib.theory.step.batching import Batching, batch_cost

# --- The panel of chapter 2: gradient accumulation and no_sync ------------------------------------

_MODEL = "gpt2-124m"
_SHAPE = MODELS[_MODEL]


@dataclass(frozen=True)
class Accumulated:
    """What the theory predicts for one accumulated update."""

    batching: Batching
    all_reduces: int  # backward passes of one update that all-reduce
    layer_bytes: int  # activations of one layer, one micro-batch at a time
    at_once_layer_bytes: int  # if all of the rank's samples were one micro-batch


@panel
def accumulation(
    micro_batch: int = whole("micro-batch", 4, 1, 64),
    accumulation: int = whole("accumulation", 4, 1, 64),
    # At least 2: a single rank exchanges no gradients.
    dp: int = powers_of_two("data parallel", 2, 2, 64),
    no_sync: bool = flag("no_sync", True),
) -> View:
    """Sliders for one update of data-parallel training; the result is an `Accumulated`.

    Raises ValueError for starting values outside the sliders.
    """
    # The epoch's length does not matter: only its first update is shown.
    batching = Batching(10**6, micro_batch, accumulation, gpus_per_node=dp)
    rank_samples = Batching(10**6, micro_batch, accumulation).global_batch
    syncs = {used: gradient_syncs(accumulation, accumulation, used) for used in (False, True)}
    result = Accumulated(
        batching, syncs[no_sync], _layer_bytes(micro_batch), _layer_bytes(rank_samples)
    )
    sizes = f"micro-batch {micro_batch} × accumulation {accumulation} × dp {dp}"
    used, kept = "with" if no_sync else "without", format_bytes(result.layer_bytes)
    rows = (
        ("global batch", f"{sizes} = {batching.global_batch:,} samples"),
        ("all-reduces per update", f"{result.all_reduces} {used} no_sync"),
        (f"activations of one layer of {_MODEL}", f"{kept}, whatever the accumulation"),
        ("the same without accumulation", format_bytes(result.at_once_layer_bytes)),
    )
    return View(result, rows, lambda: figures.window(batching, syncs, no_sync))


def _layer_bytes(samples: int) -> int:
    """Activations that one layer keeps for a micro-batch of `samples` samples."""
    job = Job(_SHAPE, Recipe(), Layout(micro_batch=samples), sequence=_SHAPE.context)
    return layer_activation_bytes(job)


# --- The panel of chapter 2: what a batch size costs in steps and in samples ----------------------


@panel
def critical_batch(
    batch: int = powers_of_two("batch", 64, 8, 16384),
    critical: int = powers_of_two("critical batch", 1024, 64, 4096),
) -> View:
    """Sliders for `batch_cost`, whose `BatchCost` is the panel's result.

    Raises ValueError for starting values outside the sliders.
    """
    cost = batch_cost(batch, critical)
    steps, samples = format_number(cost.steps, 4), format_number(cost.samples, 4)
    rows = (
        ("steps, times the fewest", f"1 + critical batch {critical} / batch {batch} = {steps}"),
        ("samples, times the fewest", f"1 + batch {batch} / critical batch {critical} = {samples}"),
    )
    return View(cost, rows, lambda: figures.batch_cost(cost, critical, batch))
