"""Which collectives one training step makes on one GPU: the counts behind `Traffic`.

Ranks are placed as Megatron-LM does by default: tp innermost, then cp (and ep, over dp·cp), dp, and
pp outermost. Not counted, since small: gradients of norms under sequence parallelism, the norm
of all gradients, the loss itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.activations import local_tokens
from course_lib.theory.memory.states import layer_kinds, local_parameters
from course_lib.theory.network.buckets import gradient_syncs
from course_lib.theory.network.links import group_link
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.theory.network.traffic import Collective, Traffic


def step_traffic(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    sequence: int,
    cluster: Cluster,
    stage: int = 0,
    *,
    habits: CommunicationPolicy | None = None,
    overlap: Mapping[str, float] | None = None,
) -> Traffic:
    """Every collective of one update on a GPU of pipeline rank `stage`.

    dp (over dp·cp): all-reduce of gradients; ZeRO-1 and 2 reduce-scatter and gather of parameters;
    ZeRO-3 two gathers of each layer (one of what is outside the layers) and a reduce-scatter per
    micro-batch. tp: 4 all-reduces of b·s·h per layer and micro-batch, or as many pairs of
    all-gather and reduce-scatter. cp: keys and values around a ring, their gradients back. ep:
    all-to-all of routed tokens, there and back, forward and backward. pp: b·s·h per boundary.
    Full recomputation repeats what belongs to the forward pass. `overlap`: see `Traffic`.
    Raises ValueError for a layout that doesn't fit the model, the sequence or the cluster.
    """
    layout.check(shape, sequence)
    if layout.world > cluster.world:
        layout.check_world(cluster.world)
    step = _Step(shape, recipe, layout, sequence, cluster, stage, habits or CommunicationPolicy())
    entries = (*_tensor(step), *_context(step), *_expert(step), *_data(step), *_pipeline(step))
    return Traffic(tuple(entry for entry in entries if entry.count), dict(overlap or {}))


@dataclass(frozen=True)
class _Step:
    """The inputs of `step_traffic`, and the counts that several axes need."""

    shape: TransformerShape
    recipe: Recipe
    layout: Layout
    sequence: int
    cluster: Cluster
    stage: int
    habits: CommunicationPolicy

    @property
    def passes(self) -> int:
        """Micro-batches that go through each chunk; DualPipe sends half of them each way."""
        return self.layout.accumulation // (2 if self.layout.schedule == "dualpipe" else 1)

    @property
    def forwards(self) -> int:
        """Forward passes per micro-batch: full recomputation makes it two."""
        return 2 if self.recipe.recompute == "full" else 1

    def layers(self) -> tuple[int, int]:
        """Layers on this rank: those with one MLP, and those with experts."""
        sizes, counts = self.layout.chunk_layers(self.shape), [0, 0]
        for chunk in self.layout.stage_chunks(self.stage):
            start = sum(sizes[:chunk])
            for layer, count in layer_kinds(self.shape, start, start + sizes[chunk]):
                counts[self.shape.has_experts(layer)] += count
        return counts[0], counts[1]

    def ends(self) -> tuple[bool, bool]:
        """Whether this rank has the embedding, and whether it has the head."""
        chunks = self.layout.stage_chunks(self.stage)
        return 0 in chunks, self.layout.chunks - 1 in chunks

    def activation_bytes(self, inside: bool) -> int:
        """b·s·h of one micro-batch on this GPU, inside or outside the tensor-parallel region."""
        tokens = local_tokens(self.layout, self.layout.micro_batch, self.sequence)
        count = tokens.inside if inside else tokens.outside
        return count * self.shape.hidden * self.recipe.weight_bytes

    def routed_bytes(self, inside: bool) -> float:
        """The same for tokens on their way to the busiest experts: top_k · imbalance times."""
        return self.activation_bytes(inside) * self.shape.top_k * self.recipe.imbalance

    def entry(
        self,
        axis: str,
        what: str,
        operation: str,
        count: int,
        size_bytes: float,
        ranks: int,
        stride: int,
    ) -> Collective:
        """One entry, on the link of its group."""
        link = group_link(self.cluster, operation, ranks, stride)
        algorithm = self.habits.algorithm
        return Collective(axis, what, operation, count, size_bytes, ranks, link, algorithm)


def _tensor(step: _Step) -> Iterator[Collective]:
    """Tensor parallelism; Narayanan et al. 2021, arXiv:2104.04473, section 3.2."""
    if step.layout.tp == 1:
        return
    dense, experts = step.layers()
    size, routed = step.activation_bytes(inside=True), step.routed_bytes(inside=True)
    blocks = [("attention", dense + experts, size)]
    if step.layout.sequence_parallel:
        shared = experts if step.shape.shared_experts else 0
        blocks += [("MLP", dense, size), ("experts", experts, routed)]
        blocks += [("shared experts", shared, size)]
    else:  # every rank has all tokens, and one sum at the end does for all experts
        blocks += [("MLP", dense, size), ("experts", experts, size)]
    for what, layers, block_bytes in blocks:
        yield from _sums(step, what, layers * step.passes, block_bytes, step.forwards)
    embedding, head = step.ends()
    yield from _sums(step, "embedding", embedding * step.passes, size, 1, backward=0)
    yield from _sums(step, "head", head * step.passes, size, 0)
    # The loss over a split vocabulary: maximum, sum and right logit of each token, in fp32.
    loss = size // step.recipe.weight_bytes // step.shape.hidden * 4
    yield step.entry("tp", "loss", "all-reduce", 3 * head * step.passes, loss, step.layout.tp, 1)


def _sums(
    step: _Step, what: str, calls: int, size_bytes: float, forward: int, backward: int = 1
) -> Iterator[Collective]:
    """Sums over tp around one block: all-reduces, or all-gathers and reduce-scatters.

    With sequence parallelism each pass of a block needs both, and each is half of an all-reduce.
    """
    ranks, count = step.layout.tp, calls * (forward + backward)
    if not step.layout.sequence_parallel:
        yield step.entry("tp", what, "all-reduce", count, size_bytes, ranks, 1)
        return
    again = calls * (step.habits.gather_inputs_again and backward)
    yield step.entry("tp", what, "all-gather", count + again, size_bytes, ranks, 1)
    yield step.entry("tp", what, "reduce-scatter", count, size_bytes, ranks, 1)


def _context(step: _Step) -> Iterator[Collective]:
    """Ring attention: each rank's keys and values visit the other cp - 1 ranks.

    Once for each forward pass and once for the backward pass, when their gradients travel as well.
    All-gather and reduce-scatter instead of the ring send as many bytes if the backward pass
    gathers again, and two thirds of them if the gathered keys and values are kept.
    Source: Liu et al. 2023, arXiv:2310.01889, section 3; Llama 3, arXiv:2407.21783, section 3.3.2.
    """
    ranks = step.layout.cp
    shape, tokens = step.shape, local_tokens(step.layout, step.layout.micro_batch, step.sequence)
    heads = shape.kv_heads // min(step.layout.tp, shape.kv_heads)
    width = heads * (shape.head_width + shape.value_width)
    size = tokens.inside * width * step.recipe.weight_bytes
    hops = (ranks - 1) * sum(step.layers()) * step.passes
    # Selective recomputation repeats attention, and so the ring.
    rounds = 2 + (step.recipe.recompute != "none")
    stride = step.layout.tp
    yield step.entry("cp", "keys and values", "send-recv", hops * rounds, size, ranks, stride)
    yield step.entry("cp", "their gradients", "send-recv", hops, size, ranks, stride)


def _expert(step: _Step) -> Iterator[Collective]:
    """Tokens to their experts and back, and the same for their gradients.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3.
    """
    ranks = step.layout.ep
    calls = (ranks > 1) * step.layers()[1] * step.passes * (step.forwards + 1)
    size = step.routed_bytes(inside=False)
    for what in ("dispatch", "combine"):
        yield step.entry("ep", what, "all-to-all", calls, size, ranks, step.layout.tp)


def _data(step: _Step) -> Iterator[Collective]:
    """Gradients and, under ZeRO, parameters; ZeRO, arXiv:1910.02054, section 7."""
    layout = step.layout
    local = local_parameters(step.shape, layout, step.stage)
    dense, experts = step.layers()
    layers = local.dense - local.ends_dense
    groups = [
        ("layers", layers, dense + experts, layout.shard_ranks, layout.tp),
        ("ends", local.ends_dense, 1, layout.shard_ranks, layout.tp),
        ("experts", local.experts, experts, layout.expert_shard_ranks, layout.tp * layout.ep),
    ]
    for what, parameters, units, ranks, stride in groups:
        if ranks > 1 and parameters:
            exchange = _sharded if layout.zero_stage == 3 else _bucketed
            yield from exchange(step, what, parameters, units, ranks, stride)


def _bucketed(
    step: _Step, what: str, parameters: int, units: int, ranks: int, stride: int
) -> Iterator[Collective]:
    """DDP and ZeRO-1 and 2: whole gradients in buckets, then whole parameters."""
    stage, cap = step.layout.zero_stage, step.habits.bucket_bytes
    sums = gradient_syncs(step.passes, step.passes, step.habits.no_sync and stage < 2)
    size = parameters * step.recipe.gradient_bytes
    buckets = -(-size // cap)
    name, operation = f"gradients of {what}", "reduce-scatter" if stage else "all-reduce"
    yield step.entry("dp", name, operation, sums * buckets, size / buckets, ranks, stride)
    if stage:
        size = parameters * step.recipe.weight_bytes
        buckets = -(-size // cap)
        name = f"parameters of {what}"
        yield step.entry("dp", name, "all-gather", buckets, size / buckets, ranks, stride)


def _sharded(
    step: _Step, what: str, parameters: int, units: int, ranks: int, stride: int
) -> Iterator[Collective]:
    """ZeRO-3: a gather per layer and pass; what is outside the layers stays gathered."""
    calls, each = units * step.passes, parameters / units
    gathers = calls * (2 if step.habits.reshard and what != "ends" else 1)
    size = each * step.recipe.weight_bytes
    yield step.entry("dp", f"parameters of {what}", "all-gather", gathers, size, ranks, stride)
    size = each * step.recipe.gradient_bytes
    yield step.entry("dp", f"gradients of {what}", "reduce-scatter", calls, size, ranks, stride)


def _pipeline(step: _Step) -> Iterator[Collective]:
    """Activations to the next stage, gradients to the one before, and copies of parameters.

    Under sequence parallelism each tp rank sends its own part. Sources: Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2; DeepSeek-V3, arXiv:2412.19437, section 3.2.1 (two copies).
    """
    layout = step.layout
    if layout.pp == 1:
        return
    stride = layout.tp * layout.cp * layout.dp
    size = step.activation_bytes(inside=False)
    embedding, head = step.ends()
    chunks = len(layout.stage_chunks(step.stage))
    for what, ends in (("activations", head), ("gradients", embedding)):
        count = (chunks - ends) * step.passes
        yield step.entry("pp", what, "send-recv", count, size, layout.pp, stride)
    local = local_parameters(step.shape, layout, step.stage)
    if layout.schedule == "dualpipe":
        copies, what = local.total, "gradients of both copies"
    else:
        tied = step.shape.tied_embeddings and (embedding or head)
        copies, what = (
            tied * -(-step.shape.vocab // layout.tp) * step.shape.hidden,
            "tied embedding",
        )
    size = copies * step.recipe.gradient_bytes
    # The two copies lie on two stages: as far apart as the whole pipeline, for the link.
    link = group_link(step.cluster, "send-recv", layout.pp, stride)
    yield Collective("pp", what, "all-reduce", int(copies > 0), size, 2, link)
