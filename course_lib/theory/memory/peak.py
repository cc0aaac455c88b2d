"""Peak memory of a GPU in training, alone or in any layout.

It adds up the parts: `recipe` (bytes per element), `layout` (how tensors are split), `states`
(weights, gradients, optimizer), `activations` (tensors that forward saves for backward).
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

# CUDA context, NCCL buffers, library workspaces: a convention; observed are 0.5 to 2 GiB.
# Source: Bekman, Machine Learning Engineering, training/performance.
OVERHEAD_BYTES = 1 * GIB
INDEX_BYTES = 8  # token ids are int64


def training_memory(
    shape: TransformerShape,
    recipe: Recipe,
    micro_batch: int,
    sequence: int = DERIVED,
    *,
    overhead_bytes: NotNegative = OVERHEAD_BYTES,
) -> MemoryBreakdown:
    """Memory of one GPU that trains `shape` alone, by consumer: `gpu_memory` for a single GPU.

    `sequence` defaults to the model's context.
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
    """Memory at the four moments of an update at which it may peak.

    "loss": all activations and the copies of the logits. "backward begins": without the loss, but
    with the gradients and recomputed activations of the last layer. "backward ends": all gradients,
    and the activations of one layer. "update": the optimizer's step. Inputs and labels are int64.
    Unsharded gradients that FSDP reduces layer by layer do not exist at the loss. With
    gradient_life "backward" the first two moments have no gradients, unless earlier micro-batches
    left some. So the result is an upper bound for a pipeline that holds most activations before all
    gradients exist; `replay.memory_timeline` simulates its passes one by one. It is an upper bound,
    too, where unsharded gradients accumulate until the update under ZeRO-2 and 3: their shards are
    counted although they are allocated only as the unsharded ones are freed.
    """
    local = states.local_parameters(job.shape, job.layout, stage)
    kept = replace(
        states.sharded_states(local, job.recipe, job.layout), overhead_bytes=int(overhead_bytes)
    )
    in_pass = replace(kept, **states.sharding_buffers(local, job.recipe, job.layout))
    first = replace(in_pass, gradients_bytes=0) if gradients_come_late(job) else in_pass
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
            in_pass, activations_bytes=largest_layer_bytes(job, chunks), temporary_bytes=temporary
        ),
        "update": replace(kept, update_bytes=states.update_bytes(local, job.recipe, job.layout)),
    }


def gradients_come_late(job: Job) -> bool:
    """Whether no gradients exist yet when most activations are held.

    True for a single micro-batch without a pipeline under gradient_life "backward".
    """
    layout = job.layout
    return job.recipe.gradient_life == "backward" and layout.accumulation * layout.pp == 1


def worst_stage(
    job: Job, *, overhead_bytes: NotNegative = OVERHEAD_BYTES
) -> tuple[int, MemoryBreakdown]:
    """The pipeline rank with the highest peak (the first of equals) and its breakdown."""
    stages = range(job.layout.pp)
    bills = [gpu_memory(job, stage, overhead_bytes=overhead_bytes) for stage in stages]
    worst = max(stages, key=lambda stage: bills[stage].total_bytes)
    return worst, bills[worst]


def host_bytes(job: Job, stage: CountOrZero = 0) -> int:
    """Host memory per GPU in bytes: offloaded master copy and optimizer states, or 0.

    Source: ZeRO-Offload, arXiv:2101.06840. Gradients are counted on the GPU.
    """
    local = states.local_parameters(job.shape, job.layout, stage)
    kept = states.sharded_states(local, job.recipe, job.layout)
    everything = states.sharded_states(local, replace(job.recipe, offload="none"), job.layout)
    return everything.model_states_bytes - kept.model_states_bytes


def fewest_gpus(total_bytes: NotNegative, gpu_bytes: Positive) -> int:
    """Number of GPUs whose combined memory holds `total_bytes`: total / gpu, rounded up.

    A lower bound: it assumes perfect sharding, no buffers, no copies and no fragmentation.
    """
    return max(1, math.ceil(total_bytes / gpu_bytes))


def _layers(job: Job, chunks: tuple[int, ...]) -> list[tuple[Job, int]]:
    """(job, layer) for one layer of each kind in the chunks.

    If a chunk recomputes only some layers, only the others are listed: the backward pass frees
    their activations before it reaches the recomputed ones.
    """
    layers = []
    for chunk in chunks:
        kinds = job.layers_of(chunk)
        keeping = [kind for kind in kinds if kind[0] is not job]
        layers += [(layer_job, layer) for layer_job, layer, _ in keeping or kinds]
    return layers


def largest_layer_bytes(job: Job, chunks: tuple[int, ...]) -> int:
    """Activation bytes of one micro-batch in the largest layer of the chunks."""
    sizes = (
        activations.layer_activation_bytes(layer_job, layer)
        for layer_job, layer in _layers(job, chunks)
    )
    return max(sizes, default=0)


def layer_temporary_bytes(job: Job, chunks: tuple[int, ...]) -> int:
    """Temporary bytes of the largest layer: recomputed activations, and gradients inside it."""
    sizes = (
        activations.recomputed_bytes(layer_job, layer)
        + activations.layer_gradients_bytes(layer_job, layer)
        for layer_job, layer in _layers(job, chunks)
    )
    return max(sizes, default=0)


def held_at_peak(job: Job, stage: CountOrZero = 0) -> dict[int, int]:
    """Micro-batches that `stage` holds at its memory peak before a backward pass, by chunk."""
    at_peak: dict[int, int] = {}
    most = -1
    for held, *needed in _before_backward(job, stage):
        if max(map(sum, needed)) > most:
            at_peak, most = dict(held), max(map(sum, needed))
    return dict(zip(job.layout.stage_chunks(stage), at_peak.values(), strict=True))


_NEEDED = ("inputs_bytes", "activations_bytes", "head_bytes", "temporary_bytes")


def _before_backward(
    job: Job, stage: int
) -> Iterator[tuple[dict[int, int], tuple[int, ...], tuple[int, ...]]]:
    """Micro-batches held by chunk, and the `_NEEDED` bytes at the loss and in the layer after it.

    One item for each of the schedule's `full_moments`. Only the last chunk of the model has a loss;
    it frees its logits before the backward pass of its layers.
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
    for changes, running in job.layout.full_moments(stage):
        for chunk, count in changes:
            held[chunk] += count
            inputs += count * each[chunk].inputs_bytes
            layers += count * each[chunk].activations_bytes
            head += count * each[chunk].head_bytes
        at_loss = (inputs, layers, head, loss_bytes * last[running])
        yield held, at_loss, (inputs, layers, head - output * last[running], layer_bytes[running])


def chunk_activations(job: Job, chunk: int) -> MemoryBreakdown:
    """Activations that a pipeline chunk keeps of one micro-batch: inputs, layers, both ends.

    With `keep_outputs` the sent outputs, s·b·h, are included.
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


# --- Readings of different tools: a GPU shows more memory than its tensors need ---

METERS = ("allocated", "reserved", "nvidia-smi")
# Buffers of one NCCL communicator. Measured: 688 MiB among 4 A100s over NVLink, 544 MiB between
# two. github.com/NVIDIA/nccl, issue 964.
COMMUNICATOR_BYTES = 688 * MIB
# Reserved bytes over the bytes of tensors that this library predicts, at the peak. Fitted, not
# measured: the median of torchtitan's 16 published reserved memories, 1.17 of 1.00 to 1.25, rounded
# to a twentieth (benchmarks/README.md). It covers fragmentation in the allocator and everything
# that the prediction misses.
RESERVED_OVER_ALLOCATED = 1.15


def metered_bytes(
    bill: MemoryBreakdown,
    meter: Annotated[str, METERS],
    layout: Layout,
    *,
    buffers_bytes: NotNegative = 0,
    reserved_over_allocated: Annotated[float, partial(number, least=1)] = RESERVED_OVER_ALLOCATED,
) -> float:
    """Bytes that `meter` shows at the peak `bill`, without the bill's own overhead.

    "allocated": tensors (torch.cuda.max_memory_allocated). "reserved": memory held by the caching
    allocator, estimated as reserved_over_allocated (fitted) times the tensors, plus the framework's
    `buffers_bytes`. "nvidia-smi": reserved, plus the CUDA context and one NCCL communicator for
    each axis and one for all ranks.
    """
    allocated = bill.total_bytes - bill.overhead_bytes
    if meter == "allocated":
        return allocated
    reserved = reserved_over_allocated * allocated + buffers_bytes
    if meter == "reserved":
        return reserved
    return reserved + OVERHEAD_BYTES + communicators(layout) * COMMUNICATOR_BYTES


def communicators(layout: Layout) -> int:
    """NCCL communicators of one GPU: one for all ranks, and one for each axis of degree > 1."""
    axes = (layout.dp * layout.cp, layout.tp, layout.cp, layout.ep, layout.pp)
    return (layout.world > 1) + sum(ranks > 1 for ranks in axes)


# --- The derivation of a GPU's memory, one line per term with its numbers ---


def explain_memory(job: Job, stage: CountOrZero = 0, *, unit: str = "GB") -> str:
    """The derivation of `gpu_memory` for one stage: convention, shards, terms and total."""
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
    """A line with the bytes per parameter, by kind of model state."""
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
    """A line with the assumptions on which frameworks differ."""
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
    """Lines on this GPU's parameters under pp, tp and ep, and on how ZeRO shards them."""
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
    """Lines with micro-batches in flight × layers × bytes per layer, for each chunk."""
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
