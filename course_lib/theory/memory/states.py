"""The memory of one GPU as a list of leaves."""

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
    """Bytes on one GPU by leaf; the totals are properties."""

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    gradient_buffer_bytes: int = 0  # fp32 sums beside 16-bit gradients
    master_copy_bytes: int = 0
    optimizer_state_bytes: int = 0
    inputs_bytes: int = 0
    activations_bytes: int = 0  # of the layers
    head_bytes: int = 0  # activations before the first layer and after the last
    gathered_parameters_bytes: int = 0  # ZeRO-3: whole layers while they are computed
    gathered_gradients_bytes: int = 0  # ZeRO-2 and 3: whole gradients until they are scattered
    bucket_bytes: int = 0  # DDP: copies of the gradients that are sent
    temporary_bytes: int = 0
    update_bytes: int = 0  # the optimizer's step
    overhead_bytes: int = 0

    @property
    def model_states_bytes(self) -> int:
        """Parameters, gradients and optimizer states with their fp32 copies."""
        kinds = self.consumers
        return kinds["weights"] + kinds["gradients"] + kinds["optimizer"]

    @property
    def total_bytes(self) -> int:
        """The sum of all leaves."""
        return sum(getattr(self, leaf.name) for leaf in fields(self))

    @property
    def consumers(self) -> dict[str, int]:
        """The seven consumers, in bytes: the leaves grouped as people speak of them."""
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


# --- states on one GPU, and what sharding gathers for a moment ---

# At most as many as a shape makes whose sizes are all at their limits.
_Parameters = Annotated[int, partial(whole, least=0, most=10**100)]


@dataclass(frozen=True)
class LocalParameters:
    """Parameters of one GPU before ZeRO: what pipeline, tensor and expert parallelism leave it.

    `dense` is held alike by dp·cp ranks, `experts` by dp·cp/ep. Of these, `layer_dense` and
    `layer_experts` are in the layer of which most is sharded, `chunk_dense` and `chunk_experts` in
    such a chunk of a pipeline with its embedding or head, `ends_dense` outside the layers, and
    `table` of those in one embedding or head. Of the ends `head_dense` are last norm and head, and
    `tied_dense` the table that is the embedding as well.
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
    """Exact count for one GPU of pipeline rank `stage`.

    tp splits matrices, vocabulary (rounded up) and experts. Every tp rank has all of the norms,
    routers, learned positions, latent attention's down-projections and the biases that are added
    after a sum over ranks; and a whole key-value head once ranks outnumber those. The last stage
    holds its own copy of a tied embedding, unless it is the first as well.
    Source: Megatron-LM, core/tensor_parallel and core/transformer.
    """
    return _added_up(shape, layout, layout.stage_chunks(stage))


def chunk_parameters(shape: TransformerShape, layout: Layout, chunk: int) -> LocalParameters:
    """The part of `local_parameters` that one chunk of a pipeline has."""
    whole("chunk", chunk, least=0, most=layout.chunks - 1)
    return _added_up(shape, layout, (chunk,))


def _added_up(shape: TransformerShape, layout: Layout, chunks: tuple[int, ...]) -> LocalParameters:
    """The parameters of some chunks on one GPU."""

    def sharded(count: tuple[int, int]) -> tuple[int, int]:
        """How many of them other ranks hold as well, then how many there are."""
        dense, experts = layout.shard_ranks > 1, layout.expert_shard_ranks > 1
        return count[0] * dense + count[1] * experts, sum(count)

    dense = experts = ends = table = head = tied = 0
    largest_chunk = (0, 0)
    cuts: dict[int, tuple[int, int]] = {}  # one for each kind of layer
    for chunk in chunks:
        chunk_table, chunk_embedding, chunk_head, chunk_tied = _end_parameters(shape, layout, chunk)
        chunk_ends = chunk_embedding + chunk_head - chunk_tied
        chunk_dense, chunk_experts = chunk_ends, 0
        for layer, count in shape.layer_kinds(*layout.layer_slice(shape, chunk)):
            if layer not in cuts:
                cuts[layer] = _layer_parameters(shape, layout, layer)
            chunk_dense += count * cuts[layer][0]
            chunk_experts += count * cuts[layer][1]
        dense, experts, ends = dense + chunk_dense, experts + chunk_experts, ends + chunk_ends
        head, tied = head + chunk_head, tied + chunk_tied
        table = max(table, chunk_table)
        largest_chunk = max(largest_chunk, (chunk_dense, chunk_experts), key=sharded)
    largest_layer = max(cuts.values(), key=sharded, default=(0, 0))
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
    """Model states of one GPU after ZeRO: each kind whole, or a part of it, rounded up.

    Stage 1 shards optimizer states and master copy, stage 2 also gradients, stage 3 also
    parameters; dense ones over dp·cp ranks, experts over dp·cp/ep. Offloaded states are not here.
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
    """Parameters that this GPU's optimizer updates: its shard from ZeRO-1 on, all without."""
    return shard_parameters(local, layout) if layout.zero_stage else local.total


def update_bytes(local: LocalParameters, recipe: Recipe, layout: Layout) -> int:
    """Bytes that the optimizer's step needs for a moment.

    Unless it is fused: fp32 copies of 16-bit gradients for a master copy, and with `update`
    "foreach" a list as large as one moment, the denominators of all parameters.
    Source: torch/optim/adam.py, _multi_tensor_adam; DeepSpeed, runtime/zero/stage_1_and_2.py, step.
    """
    if recipe.update == "fused" or recipe.offload == "optimizer":
        return 0
    copies = 4 * (recipe.master_copy and recipe.accumulated_bytes < 4)
    listed = OPTIMIZER_STATE_BYTES[recipe.optimizer] // 2 if recipe.update == "foreach" else 0
    return updated_parameters(local, layout) * (copies + listed)


def sharding_buffers(local: LocalParameters, recipe: Recipe, layout: Layout) -> dict[str, int]:
    """Bytes of the leaves that data parallelism adds for a moment, on top of the model states.

    ZeRO-3 gathers parameters, ZeRO-2 and 3 hold whole gradients until they are scattered, DDP
    (stage 0) has a second copy of the gradients, unless they are views. Only what other ranks hold
    as well is gathered or sent. ZeRO-1 sends from the gradients themselves. Without `reshard` all
    weights stay gathered; where ZeRO-2 and 3 reduce once per update, whole gradients add up,
    and those of one chunk where they reduce after every group of micro-batches.
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
        gone = (whole - root, whole) if layout.zero_stage == 3 else (0, 0)
        gradients = dense * _fsdp_gradients(local, recipe, layer, gone)
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
    """Whether whole gradients, or buffers for them, are there outside of backward passes too."""
    return layout.adds_up or (recipe.gathering == "yafsdp" and layout.zero_stage == 3)


def _fsdp_gradients(
    local: LocalParameters, recipe: Recipe, layer: int, gone: tuple[int, int]
) -> int:
    """Whole gradients of FSDP2 at the worst of three moments, less the weights gone by then.

    While a layer goes backward its gradients are there, their copy in the precision in which they
    are reduced, and the head's. The embedding's come last, when all layers are freed; a tied
    table's two are added up into new memory. Then those of the root have a copy, and its weights
    are freed as well.
    Source: Zhao et al. 2023, arXiv:2304.11277, section 3.3; torch.distributed.fsdp; the sum is
    autograd's, torch/csrc/autograd/input_buffer.cpp.
    """
    width, copy = recipe.compute_bytes, recipe.gradient_bytes
    root = local.ends_dense
    return max(
        (layer + local.head_dense) * width + layer * copy,
        (root + 2 * local.tied_dense - gone[0]) * width + layer * copy,
        (root - gone[1]) * width + root * copy,
    )


def _yafsdp_bytes(recipe: Recipe, unit: int) -> tuple[int, int]:
    """Two weight and two gradient buffers of the largest unit, where embedding and head are units.

    With fp32 gradients one fp32 buffer more, in which they are reduced.
    Source: github.com/yandex/YaFSDP, ya_fsdp.py, version 1.
    """
    weights = 2 * unit * recipe.compute_bytes
    wide = 4 * unit if recipe.gradient_bytes > recipe.compute_bytes else 0
    return weights, weights + wide


@lru_cache(maxsize=64)  # asked for every chunk of a pipeline
def _layer_parameters(shape: TransformerShape, layout: Layout, layer: int) -> tuple[int, int]:
    """Dense and routed-expert parameters of one layer on one GPU, rounded up."""
    count, ranks = shape.layer_parameters(layer), layout.tp
    # On every tp rank: norms, routers, the output's bias, and the latents' down-projections.
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
    """One table in a chunk; embedding and positions; last norm and head; what of both is one."""
    first, last = chunk == 0, chunk == layout.chunks - 1
    table = -(-shape.vocab // layout.tp) * shape.hidden * (first or last)
    embedding = first * (table + shape.embedding_parameters().positions)
    head = last * (table + shape.head_parameters().norms)
    # The last stage has a copy of a tied embedding, unless it is the first as well.
    tied = shape.tied_embeddings and last and layout.holds_ends(layout.stage_of(chunk))[0]
    return table, embedding, head, tied * table


check_public(globals())
