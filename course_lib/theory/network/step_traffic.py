"""Which collectives one training step makes on one GPU: the counts behind `Traffic`.

Ranks are placed as Megatron-LM does by default: tp innermost, then cp (and ep, over dp·cp), dp, and
pp outermost. Not counted, since small: gradients of norms under sequence parallelism, the norm
of all gradients, the loss itself.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from course_lib.checked import check_public
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.recipe import RECOMPUTE
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.network.experts import nodes_of_a_token
from course_lib.theory.network.traffic import (
    AXES,
    Collective,
    CommunicationPolicy,
    Traffic,
    group_link,
)
from course_lib.validation import choice


def step_traffic(
    job: Job,
    stage: int = 0,
    *,
    policy: CommunicationPolicy | None = None,
    overlap: Mapping[str, float] | None = None,
    axes: Collection[str] = AXES,
) -> Traffic:
    """Every collective of one update on a GPU of pipeline rank `stage`.

    dp (over dp·cp): all-reduce of gradients; ZeRO-1 and 2 reduce-scatter and gather of parameters;
    ZeRO-3 two gathers of each layer (one of what is outside the layers) and a reduce-scatter per
    micro-batch; gradients as often as `Layout.reductions` says. tp: 4 all-reduces of b·s·h per
    layer and micro-batch, or as many pairs of all-gather and reduce-scatter. cp: keys and values
    around a ring, their gradients back. ep: all-to-all of routed tokens, there and back, forward
    and backward. pp: b·s·h per boundary. Full recomputation repeats what belongs to the forward
    pass. `overlap`: see `Traffic`. Only what talks along `axes` is counted, which is quicker for
    one of them.
    """
    step = _Step(job, stage, policy or CommunicationPolicy())
    for axis in axes:
        choice("axis", axis, AXES)
    entries = (entry for axis in AXES if axis in axes for entry in _ON_AXIS[axis](step))
    return Traffic(tuple(entry for entry in entries if entry.count), dict(overlap or {}))


@dataclass(frozen=True)
class _Group:
    """The ranks r, r + stride, … that talk to each other along one axis."""

    step: "_Step"
    axis: str
    ranks: int
    stride: int

    def calls(
        self,
        what: str,
        operation: str,
        count: int,
        size_bytes: float,
        *,
        kind: str = "activations",
        place: str = "layers",
        hidden: bool = False,
        alone: int = 0,
    ) -> Collective:
        """`count` calls of one kind, on the link of this group."""
        return Collective(
            self.axis,
            what,
            operation,
            count,
            size_bytes,
            self.ranks,
            group_link(self.step.job.cluster, operation, self.ranks, self.stride),
            self.step.policy.algorithm,
            kind,
            place,
            hidden,
            alone,
        )


@dataclass(frozen=True)
class _Step:
    """The inputs of `step_traffic`, and the counts that several axes need."""

    job: Job
    stage: int
    policy: CommunicationPolicy

    @property
    def passes(self) -> int:
        """Micro-batches that go through each chunk."""
        return self.job.layout.passes

    @cached_property
    def layers(self) -> tuple[int, int]:
        """Layers on this rank: those with one MLP, and those with experts."""
        return self._layers(RECOMPUTE)

    @property
    def repeated(self) -> tuple[int, int]:
        """Those of them that run forward twice: full recomputation."""
        return self._layers(("full",))

    @property
    def repeated_attention(self) -> int:
        """Layers whose attention runs forward twice: any recomputation."""
        return sum(self._layers(RECOMPUTE[1:]))

    def _layers(self, kinds: tuple[str, ...]) -> tuple[int, int]:
        """Layers with one MLP, and with experts, that have one of these kinds of recomputation."""
        counts = [0, 0]
        for chunk in self.job.layout.stage_chunks(self.stage):
            for its, layer, count in self.job.layers_of(chunk):
                counts[its.shape.has_experts(layer)] += count * (its.recipe.recompute in kinds)
        return counts[0], counts[1]

    @cached_property
    def ends(self) -> tuple[bool, bool]:
        """Whether this rank has the embedding, and whether it has the head."""
        return self.job.layout.holds_ends(self.stage)

    def activation_bytes(self, *, inside: bool) -> int:
        """b·s·h of one micro-batch on this GPU, inside or outside the tensor-parallel region."""
        tokens = self.job.local_tokens
        count = tokens.inside if inside else tokens.outside
        return count * self.job.shape.hidden * self.job.recipe.compute_bytes

    def routed_bytes(self, *, inside: bool) -> float:
        """The same for tokens on their way to the busiest experts: top_k · imbalance times."""
        routes = self.job.shape.top_k * self.job.recipe.imbalance
        return self.activation_bytes(inside=inside) * routes

    def group(self, axis: str, ranks: int, stride: int) -> _Group:
        """A group of this GPU."""
        return _Group(self, axis, ranks, stride)


def _tensor(step: _Step) -> Iterator[Collective]:
    """Tensor parallelism; Narayanan et al. 2021, arXiv:2104.04473, section 3.2."""
    shape, layout = step.job.shape, step.job.layout
    if layout.tp == 1:
        return
    (dense, experts), (dense_again, experts_again) = step.layers, step.repeated
    size, routed = step.activation_bytes(inside=True), step.routed_bytes(inside=True)
    all_layers = (dense + dense_again + experts + experts_again, dense + experts)
    its_experts = (experts + experts_again, experts)
    blocks: list[tuple[str, tuple[int, int], float]] = [
        ("attention", all_layers, size),
        ("MLP", (dense + dense_again, dense), size),
    ]
    if layout.sequence_parallel:
        blocks.append(("experts", its_experts, routed))
        if shape.shared_experts:
            blocks.append(("shared experts", its_experts, size))
    else:  # every rank has all tokens, and one sum at the end does for all experts
        blocks.append(("experts", its_experts, size))
    for what, (forward, backward), block_bytes in blocks:
        yield from _sums(_Block(step, what, forward, backward, block_bytes))
    embedding, head = step.ends
    yield from _sums(_Block(step, "embedding", int(embedding), 0, size, "embedding"))
    yield from _sums(_Block(step, "head", 0, int(head), size, "head"))
    # The loss over a split vocabulary: maximum, sum and right logit of each token, in fp32.
    loss = step.job.local_tokens.inside * 4
    group, count = step.group("tp", layout.tp, 1), 3 * head * step.passes
    yield group.calls("loss", "all-reduce", count, loss, place="head")


@dataclass(frozen=True)
class _Block:
    """Equal blocks whose input or output is summed over tp: passes of one micro-batch."""

    step: _Step
    what: str
    forward: int
    backward: int
    size_bytes: float
    place: str = "layers"


def _sums(block: _Block) -> Iterator[Collective]:
    """Sums over tp around one block: all-reduces, or all-gathers and reduce-scatters.

    With sequence parallelism each pass of a block needs both, and each is half of an all-reduce.
    """
    step, layout = block.step, block.step.job.layout
    if not block.forward + block.backward:
        return
    group = step.group("tp", layout.tp, 1)
    count = step.passes * (block.forward + block.backward)
    if not layout.sequence_parallel:
        yield group.calls(block.what, "all-reduce", count, block.size_bytes, place=block.place)
        return
    yield group.calls(block.what, "all-gather", count, block.size_bytes, place=block.place)
    yield group.calls(block.what, "reduce-scatter", count, block.size_bytes, place=block.place)
    if not layout.keep_gathered:
        what, again = f"{block.what}, inputs again", step.passes * block.backward
        size, place = block.size_bytes, block.place
        yield group.calls(what, "all-gather", again, size, place=place, hidden=True)


def _context(step: _Step) -> Iterator[Collective]:
    """Ring attention: each rank's keys and values visit the other cp - 1 ranks.

    Once for each forward pass and once for the backward pass, when their gradients travel as well.
    All-gather and reduce-scatter instead of the ring send as many bytes if the backward pass
    gathers again, and two thirds of them if the gathered keys and values are kept.
    Source: Liu et al. 2023, arXiv:2310.01889, section 3; Llama 3, arXiv:2407.21783, section 3.3.2.
    """
    shape, layout, recipe = step.job.shape, step.job.layout, step.job.recipe
    if layout.cp == 1:
        return
    heads = shape.kv_heads // min(layout.tp, shape.kv_heads)
    width = heads * (shape.head_width + shape.value_width)
    size = step.job.local_tokens.inside * width * recipe.compute_bytes
    hops, layers = (layout.cp - 1) * step.passes, sum(step.layers)
    # Selective recomputation repeats attention, and so the ring.
    rounds = 2 * layers + step.repeated_attention
    group = step.group("cp", layout.cp, layout.tp)
    yield group.calls("keys and values", "send-recv", hops * rounds, size)
    yield group.calls("their gradients", "send-recv", hops * layers, size, kind="gradients")


def _expert(step: _Step) -> Iterator[Collective]:
    """Tokens to their experts and back, and the same for their gradients.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3. With `token_nodes` a GPU sends to the
    one in its place on each other node, which forwards behind that, once to each rank that has some
    of the token's experts (github.com/deepseek-ai/DeepEP, get_dispatch_layout).
    """
    shape, layout, limit = step.job.shape, step.job.layout, step.policy.token_nodes
    if layout.ep == 1:
        return
    count = step.passes * (2 * step.layers[1] + step.repeated[1])
    size = step.routed_bytes(inside=False)
    members = max(1, min(layout.ep, step.job.cluster.gpus_per_node // layout.tp))
    nodes = -(-layout.ep // members)
    every = step.group("ep", layout.ep, layout.tp)
    inside = step.group("ep", members, layout.tp)
    between = step.group("ep", nodes, layout.tp * members)
    copies = shape.top_k if limit is None else _ranks_of_a_token(step, limit * members)
    each = size * copies / shape.top_k
    for what in ("dispatch", "combine"):
        if limit is None or nodes == 1:
            yield every.calls(what, "all-to-all", count, each, place="experts")
            continue
        copies = min(limit, nodes_of_a_token(shape.experts, shape.top_k, nodes))
        once = copies * size / shape.top_k
        yield between.calls(f"{what} to nodes", "all-to-all", count, once, place="experts")
        what, kind = f"{what} in a node", "all-to-all"
        yield inside.calls(what, kind, count, each, place="experts", hidden=True)


def _ranks_of_a_token(step: _Step, most: int) -> float:
    """Ranks that have some of a token's experts, on average, if they all lie on `most` ranks."""
    shape, ep = step.job.shape, step.job.layout.ep
    its = shape.experts // ep
    ranks = min(ep, max(most, -(-shape.top_k // its)))
    return nodes_of_a_token(its * ranks, shape.top_k, ranks)


def _data(step: _Step) -> Iterator[Collective]:
    """Gradients and, under ZeRO, parameters; ZeRO, arXiv:1910.02054, section 7."""
    layout = step.job.layout
    local = local_parameters(step.job.shape, layout, step.stage)
    dense, experts = step.layers
    alike = step.group("dp", layout.shard_ranks, layout.tp)
    same_experts = step.group("dp", layout.expert_shard_ranks, layout.tp * layout.ep)
    replicas = step.group("dp", layout.shard_groups, layout.tp * layout.shard_ranks)
    shares = [
        _Share(alike, "layers", local.dense - local.ends_dense, dense + experts),
        _Share(alike, "ends", local.ends_dense, 1),
        _Share(same_experts, "experts", local.experts, experts),
    ]
    for share in shares:
        if share.group.ranks > 1 and share.parameters:
            yield from _sharded(share) if layout.zero_stage == 3 else _bucketed(share)
        if layout.shard_groups > 1 and share.parameters:
            yield from _between_groups(share, replicas)


@dataclass(frozen=True)
class _Share:
    """Parameters that all ranks of `group` hold or shard alike, in `units` equal pieces."""

    group: _Group
    place: str
    parameters: int
    units: int


def _bucketed(share: _Share) -> Iterator[Collective]:
    """DDP and ZeRO-1 and 2: whole gradients in buckets, then whole parameters."""
    step, place = share.group.step, share.place
    recipe, stage = step.job.recipe, step.job.layout.zero_stage
    size = share.parameters * recipe.gradient_bytes
    buckets = -(-size // step.policy.bucket_bytes)
    operation, sent = "reduce-scatter" if stage else "all-reduce", size / buckets
    what, kind = f"gradients of {place}", "gradients"
    syncs = step.job.layout.reductions
    count = syncs * buckets
    yield share.group.calls(what, operation, count, sent, kind=kind, place=place, alone=syncs)
    if stage:
        size = share.parameters * recipe.weight_bytes
        buckets = -(-size // step.policy.bucket_bytes)
        what, kind = f"parameters of {place}", "parameters"
        sent = size / buckets
        yield share.group.calls(what, "all-gather", buckets, sent, kind=kind, place=place, alone=1)


def _sharded(share: _Share) -> Iterator[Collective]:
    """ZeRO-3: a gather per layer and pass; what is outside the layers stays gathered.

    Nothing hides what is outside the layers, the first layer's gather and its reduction, the last.
    """
    step, place = share.group.step, share.place
    recipe, layout = step.job.recipe, step.job.layout
    passes = step.passes if layout.reshard else 1  # without reshard one gather for an update
    each = share.parameters / share.units
    gathers = passes * share.units * (2 if layout.reshard and place != "ends" else 1)
    what, size = f"parameters of {place}", each * recipe.compute_bytes
    kind = "parameters"
    yield share.group.calls(what, "all-gather", gathers, size, kind=kind, place=place, alone=passes)
    what, size, syncs = f"gradients of {place}", each * recipe.gradient_bytes, layout.reductions
    count, kind = share.units * syncs, "gradients"
    yield share.group.calls(
        what, "reduce-scatter", count, size, kind=kind, place=place, alone=syncs
    )


def _between_groups(share: _Share, replicas: _Group) -> Iterator[Collective]:
    """Hybrid sharding: gradient shards are summed over the groups that hold the same ones.

    Source: Zhao et al. 2023, arXiv:2304.11277, section 3.2.2.
    """
    step = share.group.step
    size = share.parameters / share.group.ranks / share.units * step.job.recipe.gradient_bytes
    what, syncs = f"gradient shards of {share.place}", step.job.layout.reductions
    count, kind = syncs * share.units, "gradients"
    yield replicas.calls(what, "all-reduce", count, size, kind=kind, place=share.place, alone=syncs)


def _pipeline(step: _Step) -> Iterator[Collective]:
    """Activations to the next stage, gradients to the one before, and copies of parameters.

    Under sequence parallelism each tp rank sends its own part. Source: Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2.
    """
    layout = step.job.layout
    if layout.pp == 1:
        return
    group = step.group("pp", layout.pp, layout.tp * layout.cp * layout.dp)
    size = step.activation_bytes(inside=False)
    embedding, head = step.ends
    chunks = len(layout.stage_chunks(step.stage))
    stays = layout.schedule == "zbv" and step.stage == layout.pp - 1  # where the V turns
    there = (chunks - head - stays) * step.passes
    back = (chunks - embedding - stays) * step.passes
    yield group.calls("activations", "send-recv", there, size)
    yield group.calls("gradients", "send-recv", back, size, kind="gradients")
    what, copies = _copied_parameters(step)
    if copies:
        # The two copies lie on two stages: as far apart as the whole pipeline, for the link.
        link = group_link(step.job.cluster, "send-recv", layout.pp, group.stride)
        size = copies * step.job.recipe.gradient_bytes
        yield Collective("pp", what, "all-reduce", 1, size, 2, link, kind="gradients", place="ends")


def _copied_parameters(step: _Step) -> tuple[str, int]:
    """Parameters of this stage of which another stage has a copy, with the name of their sum.

    Source: DeepSeek-V3, arXiv:2412.19437, section 3.2.1 (DualPipe holds two copies).
    """
    shape, layout = step.job.shape, step.job.layout
    if layout.schedule == "dualpipe":
        return "gradients of both copies", local_parameters(shape, layout, step.stage).total
    embedding, head = step.ends
    if shape.tied_embeddings and embedding != head:  # both on one stage are one table
        return "tied embedding", -(-shape.vocab // layout.tp) * shape.hidden
    return "tied embedding", 0


_ON_AXIS: dict[str, Callable[[_Step], Iterator[Collective]]] = {
    "tp": _tensor,
    "cp": _context,
    "ep": _expert,
    "dp": _data,
    "pp": _pipeline,
}


check_public(globals())
