"""The collectives of one training step on one GPU, which make up `Traffic`.

Ranks are placed in Megatron-LM's default order: tp innermost, then cp (and ep, over dp·cp), dp, and
pp outermost. Not counted, since small: gradients of norms under sequence parallelism, the norm
of all gradients, the loss itself.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from course_lib.checked import CountOrZero, check_public
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.recipe import RECOMPUTE
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.network.experts import nodes_of_a_token
from course_lib.theory.network.traffic import (
    AXES,
    Axis,
    Collective,
    CommunicationPolicy,
    Part,
    Traffic,
    group_link,
)


def step_traffic(
    job: Job,
    stage: CountOrZero = 0,
    *,
    policy: CommunicationPolicy | None = None,
    overlap: Mapping[Axis, Part] | None = None,
    axes: Collection[Axis] = AXES,
) -> Traffic:
    """All collectives of one update on a GPU of pipeline rank `stage`.

    dp (over dp·cp): all-reduce of gradients; ZeRO-1 and 2: reduce-scatter, and gather of
    parameters; ZeRO-3: per micro-batch two gathers of each layer (one of parameters outside the
    layers) and a reduce-scatter. `Layout.reductions` is the number of gradient reductions. tp: 4
    all-reduces of b·s·h per layer and micro-batch, or as many pairs of all-gather and
    reduce-scatter. cp: keys and values around a ring, and their gradients back. ep: all-to-alls for
    dispatch and combine, forward and backward. pp: b·s·h per boundary. Full recomputation repeats
    the forward pass's messages. `overlap`: see `Traffic`. Only messages along `axes` are counted:
    a single axis is quicker to compute.
    """
    step = _Step(job, stage, policy or CommunicationPolicy())
    entries = (entry for axis in AXES if axis in axes for entry in _ON_AXIS[axis](step))
    return Traffic(tuple(entry for entry in entries if entry.count), dict(overlap or {}))


# A communication group: name of the axis, number of ranks, and their stride.
_Group = tuple[str, int, int]


@dataclass(frozen=True)
class _Step:
    """The inputs of `step_traffic`, and quantities shared by several axes."""

    job: Job
    stage: int
    policy: CommunicationPolicy

    @cached_property
    def layers(self) -> tuple[int, int]:
        """Layers on this stage: (dense, with experts)."""
        return self.repeated(RECOMPUTE)

    def repeated(self, kinds: tuple[str, ...] = ("full",)) -> tuple[int, int]:
        """(dense, with experts) layers with one of these kinds of recomputation."""
        counts = [0, 0]
        for chunk in self.job.layout.stage_chunks(self.stage):
            for job, layer, count in self.job.layers_of(chunk):
                counts[job.shape.has_experts(layer)] += count * (job.recipe.recompute in kinds)
        return counts[0], counts[1]

    @cached_property
    def ends(self) -> tuple[bool, bool]:
        """(has the embedding, has the head) for this stage."""
        return self.job.layout.holds_ends(self.stage)

    def activation_bytes(self, *, inside: bool) -> int:
        """Bytes of b·s·h activations on this GPU, inside or outside the tensor-parallel region."""
        tokens = self.job.local_tokens
        count = tokens.inside if inside else tokens.outside
        return count * self.job.shape.hidden * self.job.recipe.compute_bytes

    def routed_bytes(self, *, inside: bool) -> float:
        """`activation_bytes` of tokens routed to the busiest experts: times top_k · imbalance."""
        routes = self.job.shape.top_k * self.job.recipe.imbalance
        return self.activation_bytes(inside=inside) * routes

    def calls(
        self, group: _Group, what: str, operation: str, count: int, size_bytes: float, **more: Any
    ) -> Collective:
        """A Collective of `count` calls, on the group's link and with the policy's algorithm."""
        axis, ranks, stride = group
        link = group_link(self.job.cluster, operation, ranks, stride)
        algorithm = self.policy.algorithm
        return Collective(axis, what, operation, count, size_bytes, ranks, link, algorithm, **more)


def _tensor(step: _Step) -> Iterator[Collective]:
    """Tensor parallelism; Narayanan et al. 2021, arXiv:2104.04473, section 3.2.

    Each block sums its output over tp in forward, and its input's gradient in backward. Sequence
    parallelism uses an all-gather and a reduce-scatter, each half of an all-reduce, instead.
    """
    layout, passes = step.job.layout, step.job.layout.passes
    if layout.tp == 1:
        return
    (dense, experts), (dense_again, experts_again) = step.layers, step.repeated()
    embedding, head = step.ends
    size = step.activation_bytes(inside=True)
    # Without sequence parallelism every rank has all tokens: one sum covers all experts.
    routed = step.routed_bytes(inside=True) if layout.sequence_parallel else size
    shared = layout.sequence_parallel and step.job.shape.shared_experts > 0
    forward, repeated = dense + experts, dense_again + experts_again
    blocks = (  # what, forward and backward passes, bytes, place
        ("attention", forward + repeated, forward, size, "layers"),
        ("MLP", dense + dense_again, dense, size, "layers"),
        ("experts", experts + experts_again, experts, routed, "layers"),
        ("shared experts", shared * (experts + experts_again), shared * experts, size, "layers"),
        ("embedding", int(embedding), 0, size, "embedding"),
        ("head", 0, int(head), size, "head"),
    )
    group: _Group = ("tp", layout.tp, 1)
    operations = ("all-gather", "reduce-scatter") if layout.sequence_parallel else ("all-reduce",)
    for what, forwards, backwards, block_bytes, place in blocks:
        if not forwards + backwards:
            continue
        for operation in operations:
            count = passes * (forwards + backwards)
            yield step.calls(group, what, operation, count, block_bytes, place=place)
        if layout.sequence_parallel and not layout.keep_gathered:
            what, count = f"{what}, inputs again", passes * backwards
            more = {"place": place, "hidden": True}
            yield step.calls(group, what, "all-gather", count, block_bytes, **more)
    # The loss over a split vocabulary: maximum, sum and target logit of each token, in fp32.
    loss, count = step.job.local_tokens.inside * 4, 3 * head * passes
    yield step.calls(group, "loss", "all-reduce", count, loss, place="head")


def _context(step: _Step) -> Iterator[Collective]:
    """Ring attention: each rank's keys and values are sent around the other cp - 1 ranks.

    This happens once per forward pass and once in backward, together with their gradients.
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
    hops, layers = (layout.cp - 1) * step.job.layout.passes, sum(step.layers)
    # Selective recomputation repeats attention, and so the ring.
    rounds = 2 * layers + sum(step.repeated(RECOMPUTE[1:]))
    group = ("cp", layout.cp, layout.tp)
    yield step.calls(group, "keys and values", "send-recv", hops * rounds, size)
    yield step.calls(group, "their gradients", "send-recv", hops * layers, size, kind="gradients")


def _expert(step: _Step) -> Iterator[Collective]:
    """Expert parallelism: dispatch and combine of tokens and of their gradients.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3. With `token_nodes` a GPU sends a
    token to its counterpart on each other node, which forwards it, overlapped, once to each rank
    that has some of the token's experts (github.com/deepseek-ai/DeepEP, get_dispatch_layout).
    """
    shape, layout, limit = step.job.shape, step.job.layout, step.policy.token_nodes
    if layout.ep == 1:
        return
    count = step.job.layout.passes * (2 * step.layers[1] + step.repeated()[1])
    size = step.routed_bytes(inside=False)
    members = max(1, min(layout.ep, step.job.cluster.gpus_per_node // layout.tp))
    nodes = -(-layout.ep // members)
    every, inside = ("ep", layout.ep, layout.tp), ("ep", members, layout.tp)
    between = ("ep", nodes, layout.tp * members)
    copies = shape.top_k if limit is None else _ranks_of_a_token(step, limit * members)
    each = size * copies / shape.top_k
    for what in ("dispatch", "combine"):
        if limit is None or nodes == 1:
            yield step.calls(every, what, "all-to-all", count, each, place="experts")
            continue
        copies = min(limit, nodes_of_a_token(shape.experts, shape.top_k, nodes))
        once = copies * size / shape.top_k
        what, forwarded = f"{what} to nodes", f"{what} in a node"
        yield step.calls(between, what, "all-to-all", count, once, place="experts")
        yield step.calls(inside, forwarded, "all-to-all", count, each, place="experts", hidden=True)


def _ranks_of_a_token(step: _Step, most: int) -> float:
    """Expected number of ranks with some of a token's experts, if all are on `most` ranks."""
    shape, ep = step.job.shape, step.job.layout.ep
    each = shape.experts // ep
    ranks = min(ep, max(most, -(-shape.top_k // each)))
    return nodes_of_a_token(each * ranks, shape.top_k, ranks)


def _data(step: _Step) -> Iterator[Collective]:
    """Data parallelism: gradients and, under ZeRO, parameters; arXiv:1910.02054, section 7."""
    layout = step.job.layout
    local = local_parameters(step.job.shape, layout, step.stage)
    dense, experts = step.layers
    replicas = ("dp", layout.shard_ranks, layout.tp)
    same_experts = ("dp", layout.expert_shard_ranks, layout.tp * layout.ep)
    shares = (
        _Share(step, replicas, "layers", local.dense - local.ends_dense, dense + experts),
        _Share(step, replicas, "ends", local.ends_dense, 1),
        _Share(step, same_experts, "experts", local.experts, experts),
    )
    for share in shares:
        if share.group[1] > 1 and share.parameters:
            yield from share.sharded() if layout.zero_stage == 3 else share.bucketed()
        if layout.shard_groups > 1 and share.parameters:
            yield share.between_groups()


@dataclass(frozen=True)
class _Share:
    """Parameters replicated on, or sharded over, the ranks of `group`, in `units` equal pieces."""

    step: _Step
    group: _Group
    place: str
    parameters: int
    units: int

    def _calls(
        self, kind: str, operation: str, count: int, size_bytes: float, alone: int
    ) -> Collective:
        what, more = f"{kind} of {self.place}", {"kind": kind, "place": self.place, "alone": alone}
        return self.step.calls(self.group, what, operation, count, size_bytes, **more)

    def bucketed(self) -> Iterator[Collective]:
        """DDP, ZeRO-1 and ZeRO-2: gradients in buckets, then under ZeRO parameters in buckets."""
        recipe, layout = self.step.job.recipe, self.step.job.layout
        size, syncs = self.parameters * recipe.gradient_bytes, layout.reductions
        buckets = -(-size // self.step.policy.bucket_bytes)
        operation = "reduce-scatter" if layout.zero_stage else "all-reduce"
        yield self._calls("gradients", operation, syncs * buckets, size / buckets, syncs)
        if layout.zero_stage:
            size = self.parameters * recipe.weight_bytes
            buckets = -(-size // self.step.policy.bucket_bytes)
            yield self._calls("parameters", "all-gather", buckets, size / buckets, 1)

    def sharded(self) -> Iterator[Collective]:
        """ZeRO-3: a gather per layer and pass; parameters outside the layers stay gathered.

        Not overlapped are messages outside the layers, the first layer's gather, and its gradient
        reduction, which is the last one.
        """
        recipe, layout = self.step.job.recipe, self.step.job.layout
        passes = layout.passes if layout.reshard else 1  # without reshard one gather per update
        each, syncs = self.parameters / self.units, layout.reductions
        gathers = passes * self.units * (2 if layout.reshard and self.place != "ends" else 1)
        yield self._calls("parameters", "all-gather", gathers, each * recipe.compute_bytes, passes)
        size = each * recipe.gradient_bytes
        yield self._calls("gradients", "reduce-scatter", self.units * syncs, size, syncs)

    def between_groups(self) -> Collective:
        """Hybrid sharding: gradient shards are all-reduced over the groups that replicate them.

        Source: Zhao et al. 2023, arXiv:2304.11277, section 3.2.2.
        """
        layout, syncs = self.step.job.layout, self.step.job.layout.reductions
        replicas = ("dp", layout.shard_groups, layout.tp * layout.shard_ranks)
        size = self.parameters / self.group[1] / self.units * self.step.job.recipe.gradient_bytes
        what, more = f"gradient shards of {self.place}", {"place": self.place, "alone": syncs}
        count = syncs * self.units
        return self.step.calls(replicas, what, "all-reduce", count, size, kind="gradients", **more)


def _pipeline(step: _Step) -> Iterator[Collective]:
    """Pipeline: activations to the next stage, gradients to the previous one, tied embeddings.

    Under sequence parallelism each tp rank sends its own slice. Source: Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2.
    """
    layout = step.job.layout
    if layout.pp == 1:
        return
    group = ("pp", layout.pp, layout.tp * layout.cp * layout.dp)
    size = step.activation_bytes(inside=False)
    embedding, head = step.ends
    chunks = len(layout.stage_chunks(step.stage))
    stays = layout.schedule == "zbv" and step.stage == layout.pp - 1  # where the V turns
    forward = (chunks - head - stays) * step.job.layout.passes
    backward = (chunks - embedding - stays) * step.job.layout.passes
    yield step.calls(group, "activations", "send-recv", forward, size)
    yield step.calls(group, "gradients", "send-recv", backward, size, kind="gradients")
    # DualPipe holds two copies of the parameters: DeepSeek-V3, arXiv:2412.19437, section 3.2.1.
    shape, what, copies = step.job.shape, "tied embedding", 0
    if layout.schedule == "dualpipe":
        what, copies = "gradients of both copies", local_parameters(shape, layout, step.stage).total
    elif shape.tied_embeddings and embedding != head:  # both on one stage are one table
        copies = -(-shape.vocab // layout.tp) * shape.hidden
    if copies:
        # The two copies are on two stages; the link is that of a group spanning the pipeline.
        link = group_link(step.job.cluster, "send-recv", layout.pp, group[2])
        size = copies * step.job.recipe.gradient_bytes
        yield Collective("pp", what, "all-reduce", 1, size, 2, link, kind="gradients", place="ends")


_ON_AXIS: dict[str, Callable[[_Step], Iterator[Collective]]] = {
    "tp": _tensor,
    "cp": _context,
    "ep": _expert,
    "dp": _data,
    "pp": _pipeline,
}


check_public(globals())
