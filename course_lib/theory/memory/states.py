"""Model states of one GPU, and the buffers of sharded data parallelism."""

from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Annotated

from course_lib.checked import Count, CountOrZero, check_public
from course_lib.theory.inputs import Layout, Recipe, TransformerShape
from course_lib.theory.inputs.layout import ALONE
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES
from course_lib.theory.inputs.units import format_bytes
from course_lib.validation import whole


@dataclass(frozen=True)
class MemoryBreakdown:
    """Bytes on one GPU by kind of tensor; totals are properties."""

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    gradient_buffer_bytes: int = 0  # fp32 sums in addition to 16-bit gradients
    master_copy_bytes: int = 0
    optimizer_state_bytes: int = 0
    inputs_bytes: int = 0
    activations_bytes: int = 0  # of the layers
    head_bytes: int = 0  # activations before the first layer and after the last
    gathered_parameters_bytes: int = 0  # ZeRO-3: gathered layers while they are computed
    gathered_gradients_bytes: int = 0  # ZeRO-2, 3: unsharded gradients until reduce-scatter
    bucket_bytes: int = 0  # DDP: copies of the gradients for communication
    temporary_bytes: int = 0
    update_bytes: int = 0  # the optimizer's step
    overhead_bytes: int = 0

    @property
    def model_states_bytes(self) -> int:
        """Parameters, gradients and optimizer states, including fp32 copies."""
        kinds = self.consumers
        return kinds["weights"] + kinds["gradients"] + kinds["optimizer"]

    @property
    def total_bytes(self) -> int:
        """The sum of all leaves."""
        return sum(getattr(self, leaf.name) for leaf in fields(self))

    @property
    def consumers(self) -> dict[str, int]:
        """Bytes of the seven usual consumers of memory: the fields, grouped."""
        return {
            "weights": self.parameters_bytes,
            "gradients": self.gradients_bytes + self.gradient_buffer_bytes,
            "optimizer": self.master_copy_bytes + self.optimizer_state_bytes,
            "inputs and labels": self.inputs_bytes,
            "intermediate results": self.activations_bytes + self.head_bytes,
            "temporary buffers": (
                self.gathered_parameters_bytes
                + self.gathered_gradients_bytes
                + self.bucket_bytes
                + self.temporary_bytes
                + self.update_bytes
            ),
            "framework overhead": self.overhead_bytes,
        }

    def explain(self, unit: str = "GB") -> str:
        """One line per consumer, then the total, in GB (10^9) or GiB (2^30)."""
        lines = [
            f"{name:<22}{format_bytes(size, unit):>12}" for name, size in self.consumers.items()
        ]
        return "\n".join([*lines, f"{'total':<22}{format_bytes(self.total_bytes, unit):>12}"])


# --- Model states on one GPU, and temporary buffers of sharding ---

# The bound is that of a shape whose sizes are all at their limits.
_Parameters = Annotated[int, partial(whole, least=0, most=10**100)]


@dataclass(frozen=True)
class LocalParameters:
    """Parameters of one GPU after pipeline, tensor and expert parallelism, but before ZeRO.

    `dense` ones are replicated on dp·cp ranks, `experts` on dp·cp/ep. Subsets of these:
    `layer_dense` and `layer_experts`: the layer with most sharded parameters; `chunk_dense` and
    `chunk_experts`: the pipeline chunk with most, including its embedding or head; `ends_dense`:
    everything outside the layers; `table`: one embedding or head matrix; `head_dense`: the last
    norm and the head; `tied_dense`: a head that is also the embedding.
    """

    dense: _Parameters
    experts: _Parameters = 0
    layer_dense: _Parameters = 0
    layer_experts: _Parameters = 0
    ends_dense: _Parameters = 0
    table: _Parameters = 0
    chunk_dense: _Parameters = 0
    chunk_experts: _Parameters = 0
    head_dense: _Parameters = 0
    tied_dense: _Parameters = 0

    @property
    def total(self) -> int:
        """All parameters of this GPU."""
        return self.dense + self.experts


def local_parameters(
    shape: TransformerShape, layout: Layout = ALONE, stage: CountOrZero = 0
) -> LocalParameters:
    """Exact parameter count for one GPU of pipeline rank `stage`.

    tp splits matrices, vocabulary (rounded up) and experts. Every tp rank holds all norms, routers,
    learned positions, latent attention's down-projections, the biases that are added after a sum
    over ranks, and a whole key-value head if there are more ranks than such heads. The last stage
    holds its own copy of a tied embedding, unless it is also the first.
    Source: Megatron-LM, core/tensor_parallel and core/transformer.
    """
    return _added_up(shape, layout, layout.stage_chunks(stage))


def chunk_parameters(shape: TransformerShape, layout: Layout, chunk: int) -> LocalParameters:
    """The part of `local_parameters` that belongs to one pipeline chunk."""
    whole("chunk", chunk, least=0, most=layout.chunks - 1)
    return _added_up(shape, layout, (chunk,))


def _added_up(shape: TransformerShape, layout: Layout, chunks: tuple[int, ...]) -> LocalParameters:
    """The total parameters of the given chunks on one GPU."""

    def sharded(count: tuple[int, int]) -> tuple[int, int]:
        """Sort key: parameters that ZeRO can shard, then all parameters."""
        dense, experts = layout.shard_ranks > 1, layout.expert_shard_ranks > 1
        return count[0] * dense + count[1] * experts, sum(count)

    dense = experts = ends = table = head = tied = 0
    largest_chunk = (0, 0)
    by_layer: dict[int, tuple[int, int]] = {}  # one entry for each kind of layer
    for chunk in chunks:
        chunk_table, chunk_embedding, chunk_head, chunk_tied = _end_parameters(shape, layout, chunk)
        chunk_ends = chunk_embedding + chunk_head - chunk_tied
        chunk_dense, chunk_experts = chunk_ends, 0
        for layer, count in shape.layer_kinds(*layout.layer_slice(shape, chunk)):
            if layer not in by_layer:
                by_layer[layer] = _layer_parameters(shape, layout, layer)
            chunk_dense += count * by_layer[layer][0]
            chunk_experts += count * by_layer[layer][1]
        dense, experts, ends = dense + chunk_dense, experts + chunk_experts, ends + chunk_ends
        head, tied = head + chunk_head, tied + chunk_tied
        table = max(table, chunk_table)
        largest_chunk = max(largest_chunk, (chunk_dense, chunk_experts), key=sharded)
    largest_layer = max(by_layer.values(), key=sharded, default=(0, 0))
    return LocalParameters(dense, experts, *largest_layer, ends, table, *largest_chunk, head, tied)


def model_states(parameters: Count, recipe: Recipe, layout: Layout = ALONE) -> MemoryBreakdown:
    """Bytes of weights, gradients and optimizer states: parameters × bytes of each kind.

    AdamW in bf16 with an fp32 master copy: 2 + 2 + (4 + 8) = 16 bytes per parameter. On each of n
    GPUs ZeRO leaves 4P + 12P/n (stage 1), 2P + 14P/n (2), 16P/n (3); tp and pp divide P evenly.
    Source: ZeRO, arXiv:1910.02054, section 3.1 and figure 1.
    """
    local = LocalParameters(-(-parameters // (layout.tp * layout.pp)))
    return sharded_states(local, recipe, layout)


def sharded_states(local: LocalParameters, recipe: Recipe, layout: Layout) -> MemoryBreakdown:
    """Model states of one GPU under ZeRO; each kind is whole or one shard, rounded up.

    Stage 1 shards optimizer states and master copy, stage 2 also gradients, stage 3 also
    parameters; dense ones over dp·cp ranks, experts over dp·cp/ep. Offloaded states are left out.
    """
    part = shard_parameters(local, layout)

    def kept(stage: int, each_bytes: int) -> int:
        return (part if layout.zero_stage >= stage else local.total) * each_bytes

    on_gpu = recipe.offload == "none"
    return MemoryBreakdown(
        parameters_bytes=kept(3, recipe.weight_bytes),
        gradients_bytes=kept(2, recipe.gradient_bytes),
        gradient_buffer_bytes=kept(2, 4 * recipe.gradient_buffer),
        master_copy_bytes=kept(1, 4 * recipe.master_copy * on_gpu),
        optimizer_state_bytes=kept(1, OPTIMIZER_STATE_BYTES[recipe.optimizer] * on_gpu),
    )


def shard_parameters(local: LocalParameters, layout: Layout) -> int:
    """Parameters in one ZeRO shard, rounded up: dense / (dp·cp) + experts / (dp·cp/ep)."""
    dense = -(-local.dense // layout.shard_ranks)
    return dense + -(-local.experts // layout.expert_shard_ranks)


def updated_parameters(local: LocalParameters, layout: Layout) -> int:
    """Parameters that this GPU's optimizer updates: its shard under ZeRO, else all."""
    return shard_parameters(local, layout) if layout.zero_stage else local.total


def update_bytes(local: LocalParameters, recipe: Recipe, layout: Layout) -> int:
    """Temporary bytes of the optimizer step.

    0 for a fused update. Otherwise fp32 copies of 16-bit gradients for a master copy, and with
    `update` "foreach" a list as large as one moment, the denominators of all parameters.
    Source: torch/optim/adam.py, _multi_tensor_adam; DeepSpeed, runtime/zero/stage_1_and_2.py, step.
    """
    if recipe.update == "fused" or recipe.offload == "optimizer":
        return 0
    copies = 4 * (recipe.master_copy and recipe.accumulated_bytes < 4)
    listed = OPTIMIZER_STATE_BYTES[recipe.optimizer] // 2 if recipe.update == "foreach" else 0
    return updated_parameters(local, layout) * (copies + listed)


def sharding_buffers(local: LocalParameters, recipe: Recipe, layout: Layout) -> dict[str, int]:
    """Bytes of the temporary buffers of data parallelism, by field of MemoryBreakdown.

    ZeRO-3 gathers parameters, ZeRO-2 and 3 hold unsharded gradients until the reduce-scatter, and
    DDP (stage 0) has a second copy of the gradients, unless they are views. Parameters on a single
    rank need no buffers. ZeRO-1 sends from the gradients themselves. Without `reshard` all weights
    stay gathered. Where ZeRO-2 and 3 reduce once per update, all unsharded gradients accumulate;
    where they reduce after every group of micro-batches, those of one chunk do.
    """
    dense, experts = layout.shard_ranks > 1, layout.expert_shard_ranks > 1
    sent = local.dense * dense + local.experts * experts
    layer = local.layer_dense * dense + local.layer_experts * experts
    root = local.ends_dense * dense
    whole = recipe.gathered_units * layer + root if layout.reshard else sent
    weights = whole * recipe.compute_bytes
    if recipe.gathering == "yafsdp":
        buffers, gradients = _yafsdp_bytes(recipe, max(layer, local.table * dense))
        weights = buffers if layout.reshard else weights
    else:
        freed = (whole - root, whole) if layout.zero_stage == 3 else (0, 0)
        gradients = dense * _fsdp_gradients(local, recipe, layer, freed)
    if layout.adds_up and layout.reduces == "group":
        gradients = local.chunk_dense * dense + local.chunk_experts * experts
        gradients *= recipe.accumulated_bytes
    elif layout.adds_up:
        gradients = sent * recipe.accumulated_bytes
    copied = layout.zero_stage == 0 and not recipe.gradient_as_bucket_view
    return {
        "gathered_parameters_bytes": weights if layout.zero_stage == 3 else 0,
        "gathered_gradients_bytes": gradients if layout.zero_stage >= 2 else 0,
        "bucket_bytes": sent * recipe.gradient_bytes if copied else 0,
    }


def whole_gradients_stay(recipe: Recipe, layout: Layout) -> bool:
    """Whether unsharded gradients, or buffers for them, exist outside of backward passes too."""
    return layout.adds_up or (recipe.gathering == "yafsdp" and layout.zero_stage == 3)


def _fsdp_gradients(
    local: LocalParameters, recipe: Recipe, layer: int, freed: tuple[int, int]
) -> int:
    """Unsharded gradients of FSDP2 at the worst of three moments, less the weights freed by then.

    During a layer's backward pass its gradients exist, their copy in the reduction precision, and
    the head's gradients. The embedding's come last, when all layers are freed; the two gradients of
    a tied table are summed into new memory. Then the root's gradients have a copy, and its weights
    are freed as well.
    Source: Zhao et al. 2023, arXiv:2304.11277, section 3.3; torch.distributed.fsdp; the sum is
    autograd's, torch/csrc/autograd/input_buffer.cpp.
    """
    width, copy = recipe.compute_bytes, recipe.gradient_bytes
    root = local.ends_dense
    return max(
        (layer + local.head_dense) * width + layer * copy,
        (root + 2 * local.tied_dense - freed[0]) * width + layer * copy,
        (root - freed[1]) * width + root * copy,
    )


def _yafsdp_bytes(recipe: Recipe, unit: int) -> tuple[int, int]:
    """(weight, gradient) buffer bytes of YaFSDP: two of each, as large as the largest unit.

    Embedding and head are units too. fp32 gradients need one more fp32 buffer for the reduction.
    Source: github.com/yandex/YaFSDP, ya_fsdp.py, version 1.
    """
    weights = 2 * unit * recipe.compute_bytes
    wide = 4 * unit if recipe.gradient_bytes > recipe.compute_bytes else 0
    return weights, weights + wide


@lru_cache(maxsize=64)  # called for every chunk of a pipeline
def _layer_parameters(shape: TransformerShape, layout: Layout, layer: int) -> tuple[int, int]:
    """Dense and routed-expert parameters of one layer on one GPU, rounded up."""
    count, ranks = shape.layer_parameters(layer), layout.tp
    # Replicated on every tp rank: norms, routers, output bias and latent down-projections.
    copied = count.norms + count.router + shape.output_bias * shape.hidden
    if shape.mla is not None:
        widths = (shape.mla.q_rank or 0) + shape.mla.kv_rank + shape.mla.rope_dim
        copied += widths * (shape.hidden + shape.biases)
    if not shape.has_experts(layer):
        copied += shape.biases * shape.hidden  # of the MLP's last matrix, added after the sum
    keys_values = 0 if shape.mla else 2 * shape.kv_width * (shape.hidden + shape.qkv_biases)
    split = count.total - count.experts - copied - keys_values
    dense = copied - (-split // ranks) + keys_values // min(ranks, shape.kv_heads)
    return dense, -(-count.experts // (layout.ep * ranks))


def _end_parameters(
    shape: TransformerShape, layout: Layout, chunk: int
) -> tuple[int, int, int, int]:
    """Parameters of a chunk: one vocabulary table, embedding and positions, norm and head, tied."""
    first, last = chunk == 0, chunk == layout.chunks - 1
    table = -(-shape.vocab // layout.tp) * shape.hidden * (first or last)
    embedding = first * (table + shape.embedding_parameters().positions)
    head = last * (table + shape.head_parameters().norms)
    # The last stage has a copy of a tied embedding, unless it is also the first.
    tied = shape.tied_embeddings and last and layout.holds_ends(layout.stage_of(chunk))[0]
    return table, embedding, head, tied * table


check_public(globals())
