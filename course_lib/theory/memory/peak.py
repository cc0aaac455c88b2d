"""What is in the memory of a GPU that trains a model: alone, or in any layout over many.

The parts: `recipe` (bytes per number), `layout` (who holds what), `states` (weights, gradients,
optimizer), `activations` (what forward keeps for backward). This module adds them up.
"""

import math
from dataclasses import replace

from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import GIB
from course_lib.theory.memory.activations import (
    check_batch,
    embedding_activation_bytes,
    layer_activation_bytes,
    local_tokens,
    logits_bytes,
    output_activation_bytes,
    recomputed_bytes,
)
from course_lib.theory.memory.breakdown import MemoryBreakdown
from course_lib.theory.memory.states import (
    layer_kinds,
    local_parameters,
    sharded_states,
    sharding_buffers,
)
from course_lib.validation import number

# CUDA context, NCCL buffers, library workspaces: a convention, seen between 0.5 and 2 GiB.
# Source: Bekman, Machine Learning Engineering, training/performance.
OVERHEAD_BYTES = 1 * GIB
INDEX_BYTES = 8  # token numbers are int64


def training_memory(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int | None = None,
    overhead_bytes: int = OVERHEAD_BYTES,
) -> MemoryBreakdown:
    """All seven consumers of one GPU that trains `shape` alone; `sequence` None: its context.

    `gpu_memory` with one GPU. Raises ValueError for counts below 1 and a sequence that is too long.
    """
    return gpu_memory(
        shape, recipe, Layout(micro_batch=micro_batch), sequence, overhead_bytes=overhead_bytes
    )


def gpu_memory(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    sequence: int | None = None,
    stage: int = 0,
    overhead_bytes: int = OVERHEAD_BYTES,
) -> MemoryBreakdown:
    """Peak memory of one GPU of pipeline rank `stage`; `sequence` None: the model's context.

    The sum of all leaves at the moment when most activations are held. Inputs and labels are int64.
    The largest temporary is the fp32 gradient of the logits, 4·s·b·v/t, or the layer that is being
    recomputed: they are never there together. Raises ValueError for a layout that does not fit the
    shape or the sequence.
    """
    sequence = shape.context if sequence is None else sequence
    number("overhead_bytes", overhead_bytes, least=0)
    check_batch(shape, layout.micro_batch, sequence)
    layout.check(shape, sequence)
    local = local_parameters(shape, layout, stage)
    return replace(
        sharded_states(local, recipe, layout),
        **sharding_buffers(local, recipe, layout),
        **_activation_leaves(shape, recipe, layout, sequence, stage),
        overhead_bytes=int(overhead_bytes),
    )


def worst_stage(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    sequence: int | None = None,
    overhead_bytes: int = OVERHEAD_BYTES,
) -> tuple[int, MemoryBreakdown]:
    """The pipeline rank that needs most memory, the earliest of equals, and its breakdown."""
    bills = [
        gpu_memory(shape, recipe, layout, sequence, stage, overhead_bytes)
        for stage in range(layout.pp)
    ]
    worst = max(range(layout.pp), key=lambda stage: bills[stage].total_bytes)
    return worst, bills[worst]


def host_bytes(
    shape: TransformerShape, recipe: Recipe, layout: Layout = ALONE, stage: int = 0
) -> int:
    """Bytes in the host's memory for one GPU: offloaded master copy and optimizer states, or 0.

    Source: ZeRO-Offload, arXiv:2101.06840. Gradients are counted on the GPU.
    """
    layout.check(shape)
    local = local_parameters(shape, layout, stage)
    kept = sharded_states(local, recipe, layout)
    everything = sharded_states(local, replace(recipe, offload="none"), layout)
    return everything.model_states_bytes - kept.model_states_bytes


def fewest_gpus(total_bytes: float, gpu_bytes: float) -> int:
    """GPUs whose memories together hold `total_bytes`: total / gpu, rounded up.

    A lower bound: it takes perfect sharding, no buffers, no copies and no fragmentation.
    """
    number("total_bytes", total_bytes, least=0)
    number("gpu_bytes", gpu_bytes, above=0)
    return max(1, math.ceil(total_bytes / gpu_bytes))


def _activation_leaves(
    shape: TransformerShape, recipe: Recipe, layout: Layout, sequence: int, stage: int
) -> dict[str, int]:
    """Inputs, activations and temporaries of all micro-batches that `stage` holds at its peak."""
    where = (shape, recipe, layout.micro_batch, sequence, layout)
    indices = INDEX_BYTES * local_tokens(layout, layout.micro_batch, sequence).inside
    sizes, held = layout.chunk_layers(shape), layout.in_flight(stage)
    inputs = activations = head = temporary = 0
    for chunk, micro_batches in held.items():
        start = sum(sizes[:chunk])
        for layer, count in layer_kinds(shape, start, start + sizes[chunk]):
            activations += micro_batches * count * layer_activation_bytes(*where, layer)
            temporary = max(temporary, recomputed_bytes(*where, layer))
        if chunk == 0:
            inputs += micro_batches * indices
            head += micro_batches * embedding_activation_bytes(*where)
        if chunk == layout.chunks - 1:
            inputs += micro_batches * indices
            head += micro_batches * output_activation_bytes(*where)
            temporary = max(temporary, logits_bytes(shape, layout.micro_batch, sequence, layout))
    return {
        "inputs_bytes": inputs,
        "activations_bytes": activations,
        "head_bytes": head,
        "temporary_bytes": temporary,
    }
