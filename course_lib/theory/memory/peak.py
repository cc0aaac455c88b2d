"""What is in the memory of a GPU that trains a model: alone, or in any layout over many.

The parts: `recipe` (bytes per number), `layout` (who holds what), `states` (weights, gradients,
optimizer), `activations` and `ends` (what forward keeps for backward). This module adds them up.
"""

import math
from dataclasses import replace

from course_lib.checked import checked
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import GIB
from course_lib.theory.memory.activations import layer_activation_bytes, recomputed_bytes
from course_lib.theory.memory.breakdown import MemoryBreakdown
from course_lib.theory.memory.ends import (
    embedding_activation_bytes,
    loss_temporary_bytes,
    output_activation_bytes,
)
from course_lib.theory.memory.states import (
    local_parameters,
    sharded_states,
    sharding_buffers,
    update_bytes,
)
from course_lib.validation import DERIVED, number

# CUDA context, NCCL buffers, library workspaces: a convention, seen between 0.5 and 2 GiB.
# Source: Bekman, Machine Learning Engineering, training/performance.
OVERHEAD_BYTES = 1 * GIB
INDEX_BYTES = 8  # token numbers are int64


def training_memory(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int = DERIVED,
    *,
    overhead_bytes: float = OVERHEAD_BYTES,
) -> MemoryBreakdown:
    """All seven consumers of one GPU that trains `shape` alone, by default at its whole context.

    `gpu_memory` with one GPU. Raises ValueError for counts below 1 and a sequence that is too long.
    """
    job = Job(shape, recipe, Layout(micro_batch=micro_batch), sequence=sequence)
    return gpu_memory(job, overhead_bytes=overhead_bytes)


@checked
def gpu_memory(
    job: Job, stage: int = 0, *, overhead_bytes: float = OVERHEAD_BYTES
) -> MemoryBreakdown:
    """Peak memory of one GPU of pipeline rank `stage`: the largest of `memory_moments`.

    Raises ValueError for a stage that is not there.
    """
    moments = memory_moments(job, stage, overhead_bytes=overhead_bytes)
    return max(moments.values(), key=lambda bill: bill.total_bytes)


@checked
def memory_moments(
    job: Job, stage: int = 0, *, overhead_bytes: float = OVERHEAD_BYTES
) -> dict[str, MemoryBreakdown]:
    """What is there at the moments of an update at which most may be needed.

    "backward": most activations are held. Inputs and labels are int64; the largest temporary
    is the loss's copies of the logits, or the layer that is being recomputed: they are never there
    together. "last layer": all gradients have come to be, the activations of one layer are left.
    "update": the optimizer's step. Where gradients live from the backward pass to the
    update they are missing at the first moment, unless other micro-batches have left theirs.
    """
    number("overhead_bytes", overhead_bytes, least=0)
    local = local_parameters(job.shape, job.layout, stage)
    states = replace(
        sharded_states(local, job.recipe, job.layout), overhead_bytes=int(overhead_bytes)
    )
    passing = replace(states, **sharding_buffers(local, job.recipe, job.layout))
    first = replace(passing, gradients_bytes=0) if gradients_come_late(job) else passing
    return {
        "backward": replace(first, **_activation_leaves(job, stage)),
        "last layer": replace(passing, **_last_layer_leaves(job, stage)),
        "update": replace(states, update_bytes=update_bytes(local, job.recipe, job.layout)),
    }


@checked
def gradients_come_late(job: Job) -> bool:
    """Whether no gradients are there yet when most activations are held.

    With one micro-batch, gradients that live from the backward pass to the update.
    """
    layout = job.layout
    return job.recipe.gradient_life == "backward" and layout.accumulation * layout.pp == 1


@checked
def worst_stage(job: Job, *, overhead_bytes: float = OVERHEAD_BYTES) -> tuple[int, MemoryBreakdown]:
    """The pipeline rank that needs most memory, the earliest of equals, and its breakdown."""
    stages = range(job.layout.pp)
    bills = [gpu_memory(job, stage, overhead_bytes=overhead_bytes) for stage in stages]
    worst = max(stages, key=lambda stage: bills[stage].total_bytes)
    return worst, bills[worst]


@checked
def host_bytes(job: Job, stage: int = 0) -> int:
    """Bytes in the host's memory for one GPU: offloaded master copy and optimizer states, or 0.

    Source: ZeRO-Offload, arXiv:2101.06840. Gradients are counted on the GPU.
    """
    local = local_parameters(job.shape, job.layout, stage)
    kept = sharded_states(local, job.recipe, job.layout)
    everything = sharded_states(local, replace(job.recipe, offload="none"), job.layout)
    return everything.model_states_bytes - kept.model_states_bytes


def fewest_gpus(total_bytes: float, gpu_bytes: float) -> int:
    """GPUs whose memories together hold `total_bytes`: total / gpu, rounded up.

    A lower bound: it takes perfect sharding, no buffers, no copies and no fragmentation.
    """
    number("total_bytes", total_bytes, least=0)
    number("gpu_bytes", gpu_bytes, above=0)
    return max(1, math.ceil(total_bytes / gpu_bytes))


def _last_layer_leaves(job: Job, stage: int) -> dict[str, int]:
    """Activations and temporaries of the last layer of all whose backward pass is still to come."""
    layers = [
        layer
        for chunk in job.layout.stage_chunks(stage)
        for layer, _ in job.layout.layers_of(job.shape, chunk)
    ]
    held = [(layer_activation_bytes(job, layer), recomputed_bytes(job, layer)) for layer in layers]
    activations, temporary = max(held, key=sum, default=(0, 0))
    return {"activations_bytes": activations, "temporary_bytes": temporary}


def _activation_leaves(job: Job, stage: int) -> dict[str, int]:
    """Inputs, activations and temporaries of all micro-batches that `stage` holds at its peak."""
    layout, indices = job.layout, INDEX_BYTES * job.local_tokens.inside
    inputs = activations = head = temporary = 0
    for chunk, held in layout.in_flight(stage).items():
        for layer, count in layout.layers_of(job.shape, chunk):
            activations += held * count * layer_activation_bytes(job, layer)
            temporary = max(temporary, recomputed_bytes(job, layer))
        if chunk == 0:
            inputs += held * indices
            head += held * embedding_activation_bytes(job)
        if chunk == layout.chunks - 1:
            inputs += held * indices
            head += held * output_activation_bytes(job)
            temporary = max(temporary, loss_temporary_bytes(job))
    return {
        "inputs_bytes": inputs,
        "activations_bytes": activations,
        "head_bytes": head,
        "temporary_bytes": temporary,
    }
