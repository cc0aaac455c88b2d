"""What is in the memory of a GPU that trains a model: alone, or in any layout over many.

The parts: `recipe` (bytes per number), `layout` (who holds what), `states` (weights, gradients,
optimizer), `activations` (what forward keeps for backward). This module adds them up.
"""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Annotated

from course_lib.checked import CountOrZero, NotNegative, Positive, check_public
from course_lib.theory.inputs import Job, Layout, Recipe, TransformerShape
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES
from course_lib.theory.inputs.units import GIB, MIB, format_bytes
from course_lib.theory.memory import activations, states
from course_lib.theory.memory.states import MemoryBreakdown
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
    overhead_bytes: NotNegative = OVERHEAD_BYTES,
) -> MemoryBreakdown:
    """All seven consumers of one GPU that trains `shape` alone, by default at its whole context.

    `gpu_memory` with one GPU.
    """
    job = Job(shape, recipe, Layout(micro_batch=micro_batch), sequence=sequence)
    return gpu_memory(job, overhead_bytes=overhead_bytes)


def gpu_memory(
    job: Job, stage: CountOrZero = 0, *, overhead_bytes: NotNegative = OVERHEAD_BYTES
) -> MemoryBreakdown:
    """Peak memory of one GPU of pipeline rank `stage`: the largest of `memory_moments`."""
    moments = memory_moments(job, stage, overhead_bytes=overhead_bytes)
    return max(moments.values(), key=lambda bill: bill.total_bytes)


def memory_moments(
    job: Job, stage: CountOrZero = 0, *, overhead_bytes: NotNegative = OVERHEAD_BYTES
) -> dict[str, MemoryBreakdown]:
    """What is there at the moments of an update at which most may be needed.

    "loss": all activations are held, and the copies of the logits. "backward begins": the loss is
    gone, the last layer has its gradients and what it recomputes. "backward ends": all gradients
    have come to be, the activations of one layer are left. "update": the optimizer's step. Inputs
    and labels are int64. Whole gradients that FSDP reduces layer by layer are not there at the
    loss. Where gradients live from the backward pass to the update they are missing at the first
    two moments, unless other micro-batches have left theirs. That makes this an upper bound where a
    pipeline holds most activations before all gradients have come to be;
    `replay.memory_timeline` goes through the passes one by one. Where whole
    gradients add up until the update under ZeRO-2 and 3 it is one as well: their shards are
    counted too, which come to be only as the whole ones go.
    """
    local = states.local_parameters(job.shape, job.layout, stage)
    kept = replace(
        states.sharded_states(local, job.recipe, job.layout), overhead_bytes=int(overhead_bytes)
    )
    passing = replace(kept, **states.sharding_buffers(local, job.recipe, job.layout))
    first = replace(passing, gradients_bytes=0) if gradients_come_late(job) else passing
    stay = states.whole_gradients_stay(job.recipe, job.layout)
    at_loss = replace(first, gathered_gradients_bytes=stay * first.gathered_gradients_bytes)
    chunks = job.layout.stage_chunks(stage)
    temporary = layer_temporary_bytes(job, chunks)
    needed = zip(*(it[1:] for it in _before_backward(job, stage)), strict=True)
    loss, layer = (max(moments, key=sum) for moments in needed)
    return {
        "loss": replace(at_loss, **dict(zip(_NEEDED, loss, strict=True))),
        "backward begins": replace(first, **dict(zip(_NEEDED, layer, strict=True))),
        "backward ends": replace(
            passing, activations_bytes=largest_layer_bytes(job, chunks), temporary_bytes=temporary
        ),
        "update": replace(kept, update_bytes=states.update_bytes(local, job.recipe, job.layout)),
    }


def gradients_come_late(job: Job) -> bool:
    """Whether no gradients are there yet when most activations are held.

    With one micro-batch, gradients that live from the backward pass to the update.
    """
    layout = job.layout
    return job.recipe.gradient_life == "backward" and layout.accumulation * layout.pp == 1


def worst_stage(
    job: Job, *, overhead_bytes: NotNegative = OVERHEAD_BYTES
) -> tuple[int, MemoryBreakdown]:
    """The pipeline rank that needs most memory, the earliest of equals, and its breakdown."""
    stages = range(job.layout.pp)
    bills = [gpu_memory(job, stage, overhead_bytes=overhead_bytes) for stage in stages]
    worst = max(stages, key=lambda stage: bills[stage].total_bytes)
    return worst, bills[worst]


def host_bytes(job: Job, stage: CountOrZero = 0) -> int:
    """Bytes in the host's memory for one GPU: offloaded master copy and optimizer states, or 0.

    Source: ZeRO-Offload, arXiv:2101.06840. Gradients are counted on the GPU.
    """
    local = states.local_parameters(job.shape, job.layout, stage)
    kept = states.sharded_states(local, job.recipe, job.layout)
    everything = states.sharded_states(local, replace(job.recipe, offload="none"), job.layout)
    return everything.model_states_bytes - kept.model_states_bytes


def fewest_gpus(total_bytes: NotNegative, gpu_bytes: Positive) -> int:
    """GPUs whose memories together hold `total_bytes`: total / gpu, rounded up.

    A lower bound: it takes perfect sharding, no buffers, no copies and no fragmentation.
    """
    return max(1, math.ceil(total_bytes / gpu_bytes))


def _layers(job: Job, chunks: tuple[int, ...]) -> list[tuple[Job, int]]:
    """One layer of each kind that the chunks have, with its job.

    Where some layers of a chunk keep everything and some are recomputed, those count that keep: the
    backward pass has freed them when it comes to the others.
    """
    found = []
    for chunk in chunks:
        kinds = job.layers_of(chunk)
        keeping = [it for it in kinds if it[0] is not job]
        found += [(layer_job, layer) for layer_job, layer, _ in keeping or kinds]
    return found


def largest_layer_bytes(job: Job, chunks: tuple[int, ...]) -> int:
    """Activations of one micro-batch and layer, the largest of the chunks."""
    sizes = (
        activations.layer_activation_bytes(layer_job, layer)
        for layer_job, layer in _layers(job, chunks)
    )
    return max(sizes, default=0)


def layer_temporary_bytes(job: Job, chunks: tuple[int, ...]) -> int:
    """What one layer needs for a moment: what it recomputes, and gradients inside it."""
    sizes = (
        activations.recomputed_bytes(layer_job, layer)
        + activations.layer_gradients_bytes(layer_job, layer)
        for layer_job, layer in _layers(job, chunks)
    )
    return max(sizes, default=0)


def held_at_peak(job: Job, stage: CountOrZero = 0) -> dict[int, int]:
    """Micro-batches that `stage` holds of each of its chunks when a backward pass needs most."""
    found: dict[int, int] = {}
    most = -1
    for held, *needed in _before_backward(job, stage):
        if max(map(sum, needed)) > most:
            found, most = dict(held), max(map(sum, needed))
    return dict(zip(job.layout.stage_chunks(stage), found.values(), strict=True))


_NEEDED = ("inputs_bytes", "activations_bytes", "head_bytes", "temporary_bytes")


def _before_backward(
    job: Job, stage: int
) -> Iterator[tuple[dict[int, int], tuple[int, ...], tuple[int, ...]]]:
    """What is held, and the leaves in `_NEEDED` at the loss and in the first layer behind it.

    One for each of the schedule's `full_moments`. Only the last chunk of the model has a loss, and
    frees its logits before its layers go backward.
    """
    chunks = job.layout.stage_chunks(stage)
    each = [chunk_activations(job, chunk) for chunk in chunks]
    layer_bytes = [layer_temporary_bytes(job, (chunk,)) for chunk in chunks]
    last = [chunk == job.layout.chunks - 1 for chunk in chunks]
    output, loss_bytes = (
        activations.output_activation_bytes(job),
        activations.loss_temporary_bytes(job),
    )
    held = dict.fromkeys(range(len(chunks)), 0)
    inputs = layers = head = 0
    for changes, place in job.layout.full_moments(stage):
        for chunk, count in changes:
            held[chunk] += count
            inputs += count * each[chunk].inputs_bytes
            layers += count * each[chunk].activations_bytes
            head += count * each[chunk].head_bytes
        at_loss = (inputs, layers, head, loss_bytes * last[place])
        yield held, at_loss, (inputs, layers, head - output * last[place], layer_bytes[place])


def chunk_activations(job: Job, chunk: int) -> MemoryBreakdown:
    """What one chunk of a pipeline keeps of one micro-batch: inputs, layers, both ends.

    With `keep_outputs` also what it has sent on, s·b·h.
    """
    layers = job.layers_of(chunk)
    stored = sum(
        count * activations.layer_activation_bytes(layer_job, layer)
        for layer_job, layer, count in layers
    )
    sent = job.local_tokens.outside * job.shape.hidden * job.recipe.compute_bytes
    first, last = chunk == 0, chunk == job.layout.chunks - 1
    return MemoryBreakdown(
        inputs_bytes=(first + last) * INDEX_BYTES * job.local_tokens.inside,
        activations_bytes=stored + sent * (job.layout.keep_outputs and not last),
        head_bytes=first * activations.embedding_activation_bytes(job)
        + last * activations.output_activation_bytes(job),
    )


# --- The same memory read off different meters: what tensors need is not what a GPU shows ---

METERS = ("allocated", "reserved", "nvidia-smi")
# Buffers of one NCCL communicator. Measured: 688 MiB among 4 A100s over NVLink, 544 MiB between
# two. github.com/NVIDIA/nccl, issue 964.
COMMUNICATOR_BYTES = 688 * MIB
# Reserved bytes over the bytes of tensors that this library predicts, at the peak. Fitted, not
# measured: the median of torchtitan's 16 published reserved memories, 1.17 of 1.00 to 1.25, rounded
# to a twentieth (benchmarks/README.md). It holds the allocator's gaps and whatever the prediction
# misses.
RESERVED_OVER_ALLOCATED = 1.15


def metered_bytes(
    bill: MemoryBreakdown,
    meter: Annotated[str, METERS],
    layout: Layout,
    *,
    buffers_bytes: NotNegative = 0,
    reserved_over_allocated: Annotated[float, partial(number, least=1)] = RESERVED_OVER_ALLOCATED,
) -> float:
    """What `meter` shows at the peak of `bill`, whose own overhead is left out.

    "allocated": tensors (torch.cuda.max_memory_allocated). "reserved": what the caching allocator
    holds, taken as reserved_over_allocated (fitted) times as much, and `buffers_bytes` of the
    framework. "nvidia-smi": the same, CUDA's context and a communicator for each axis and for all
    ranks.
    """
    allocated = bill.total_bytes - bill.overhead_bytes
    if meter == "allocated":
        return allocated
    reserved = reserved_over_allocated * allocated + buffers_bytes
    if meter == "reserved":
        return reserved
    return reserved + OVERHEAD_BYTES + communicators(layout) * COMMUNICATOR_BYTES


def communicators(layout: Layout) -> int:
    """NCCL communicators of one GPU: one for all ranks, and one for each axis that has several."""
    axes = (layout.dp * layout.cp, layout.tp, layout.cp, layout.ep, layout.pp)
    return (layout.world > 1) + sum(ranks > 1 for ranks in axes)


# --- How a GPU's memory comes about, one line per term with its numbers ---


def explain_memory(job: Job, stage: CountOrZero = 0, *, unit: str = "GB") -> str:
    """The derivation of `gpu_memory` for one stage: convention, shares, leaves and total."""
    moments = memory_moments(job, stage)
    peak = max(moments, key=lambda name: moments[name].total_bytes)
    bill = moments[peak]
    leaves = {leaf.name.removesuffix("_bytes"): getattr(bill, leaf.name) for leaf in fields(bill)}
    sizes = [f"{name:<20}{format_bytes(size, unit):>12}" for name, size in leaves.items() if size]
    return "\n".join(
        [
            _convention(job.recipe),
            f"{_assumed(job)}; the peak is at the moment {peak!r}",
            *_parameter_lines(job, stage),
            *_activation_lines(job, stage, unit),
            *sizes,
            f"{'total':<20}{format_bytes(bill.total_bytes, unit):>12}",
        ]
    )


def _convention(recipe: Recipe) -> str:
    """The bytes of one parameter, kind by kind."""
    parts = [
        f"weights {recipe.weight_bytes} ({recipe.parameters})",
        f"gradients {recipe.gradient_bytes} ({recipe.gradients})",
        *["fp32 gradient buffer 4"] * recipe.gradient_buffer,
        *["fp32 master copy 4"] * recipe.master_copy,
        f"states {OPTIMIZER_STATE_BYTES[recipe.optimizer]}",
    ]
    total = recipe.bytes_per_parameter
    return f"{recipe.optimizer}: {' + '.join(parts)} = {total} B per parameter"


def _assumed(job: Job) -> str:
    """What the frameworks do differently, as it is assumed here."""
    recipe, layout = job.recipe, job.layout
    kept = {
        "weights stay gathered": not layout.reshard,
        "whole gradients add up": layout.adds_up and layout.reduces == "update",
        "whole gradients of one chunk add up": layout.adds_up and layout.reduces == "group",
        "gathered inputs are kept": layout.keep_gathered,
        "sent outputs are kept": layout.keep_outputs,
    }
    life = {"always": "stay", "backward": "live from the backward pass to the update"}
    parts = [
        f"loss {recipe.loss}",
        f"gradients {life[recipe.gradient_life]}",
        f"update {recipe.update}",
        *(what for what, so in kept.items() if so),
    ]
    return f"assumed: {', '.join(parts)}"


def _parameter_lines(job: Job, stage: int) -> list[str]:
    """What pipeline, tensor and expert parallelism leave this GPU, and over how many ZeRO cuts."""
    layout, local = job.layout, states.local_parameters(job.shape, job.layout, stage)
    shards = {"optimizer": 1, "gradients": 2, "parameters": 3}
    cut = [name for name, least in shards.items() if layout.zero_stage >= least]
    lines = [
        f"stage {stage} of pp {layout.pp}, 1/{layout.tp} by tp: {local.dense:,} dense parameters"
        f" (of {job.shape.parameters().total:,} in the model)"
    ]
    if local.experts:
        lines.append(f"1/{layout.ep} of the experts by ep: {local.experts:,} parameters")
    if cut:
        line = f"ZeRO-{layout.zero_stage} cuts {', '.join(cut)} over dp·cp = {layout.shard_ranks}"
        if local.experts:
            line += f", of experts over dp·cp/ep = {layout.expert_shard_ranks}"
        lines.append(line)
    return lines


def _activation_lines(job: Job, stage: int, unit: str) -> list[str]:
    """Micro-batches in flight × layers × bytes of one, for each chunk of the stage."""
    lines = []
    for chunk, held in held_at_peak(job, stage).items():
        for layer_job, layer, count in job.layers_of(chunk):
            each = format_bytes(activations.layer_activation_bytes(layer_job, layer), unit)
            kind = " with experts" if job.shape.has_experts(layer) else ""
            lines.append(
                f"{job.layout.schedule}, recompute {layer_job.recipe.recompute}: {held} "
                f"micro-batches × {count} layers{kind} × {each}"
            )
    return lines


check_public(globals())
