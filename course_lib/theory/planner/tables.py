"""Tables of a search, and kinds of pipeline stages: those with equal layers and ends.

Stages of a kind have the same work and messages, and the first of them holds most activations, so a
plan evaluates one stage of each kind.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from course_lib.theory.inputs import Job, Layout, Recipe, TransformerShape
from course_lib.theory.memory import activations, states
from course_lib.theory.memory.peak import INDEX_BYTES
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.traffic import Collective
from course_lib.theory.planner.space import ZERO_STAGES, Question, Row
from course_lib.theory.step import stage


class Held(NamedTuple):
    """Activations that a stage holds before a backward pass, and the kind of that pass.

    `dense`, `experts`: layers times micro-batches in flight. `first`, `last`: micro-batches at the
    ends of the model. `freed`: 1 if the pass starts with the loss, which frees one of `last`.
    `next_dense`, `next_experts`: whether the chunk of the pass has layers of that kind.
    """

    dense: int
    experts: int
    first: int
    last: int
    freed: int
    next_dense: int
    next_experts: int

    def exceeds(self, other: "Held") -> bool:
        """Whether this moment needs at least as much memory, for any sizes of the parts."""
        kept = self.last - self.freed >= other.last - other.freed
        return kept and all(left >= right for left, right in zip(self, other, strict=True))


@dataclass(frozen=True)
class StageKind:
    """`count` stages, the first of them `stage`; `chunks`: (dense, expert) layers by chunk."""

    stage: int
    count: int
    chunks: tuple[tuple[int, int], ...]
    first: bool
    last: bool

    @property
    def dense(self) -> int:
        """Layers with one MLP."""
        return sum(dense for dense, _ in self.chunks)

    @property
    def experts(self) -> int:
        """Layers with routed experts."""
        return sum(experts for _, experts in self.chunks)

    def held(self, layout: Layout) -> list[Held]:
        """Candidate memory peaks of a stage of this kind; none of them exceeds another."""
        end = len(self.chunks) - 1
        parts = [
            (*layers, self.first * (chunk == 0), self.last * (chunk == end))
            for chunk, layers in enumerate(self.chunks)
        ]
        following = [(last, dense > 0, experts > 0) for dense, experts, _, last in parts]
        dense = experts = first = last = 0
        most_dense: dict[tuple[int, int, int, tuple[int, int, int]], int] = {}
        for changes, running in layout.full_moments(self.stage):
            for chunk, count in changes:
                each = parts[chunk]
                dense += count * each[0]
                experts += count * each[1]
                first += count * each[2]
                last += count * each[3]
            rest = experts, first, last, following[running]
            if dense > most_dense.get(rest, -1):
                most_dense[rest] = dense
        moments = [Held(most, *rest[:3], *rest[3]) for rest, most in most_dense.items()]
        largest: list[Held] = []
        for moment in sorted(moments, reverse=True):
            if not any(other.exceeds(moment) for other in largest):
                largest.append(moment)
        return largest


def stage_kinds(shape: TransformerShape, layout: Layout) -> list[StageKind]:
    """The kinds of stages of one pipeline, sorted by their first stages."""
    chunks, pp = stage.chunk_kinds(shape, layout), layout.pp
    by_kind: dict[tuple[tuple[tuple[int, int], ...], bool, bool], list[int]] = {}
    for rank in range(pp):
        key = (tuple(chunks[rank::pp]), rank == 0, rank == pp - 1)
        by_kind.setdefault(key, []).append(rank)
    return [StageKind(stages[0], len(stages), *key) for key, stages in by_kind.items()]


def pad(kinds: Iterable[list[StageKind]]) -> list[list[StageKind]]:
    """Pad lists of kinds to equal length with copies of the first kind that have no stages."""
    lists = list(kinds)
    width = max(len(kinds) for kinds in lists)
    return [kinds + [replace(kinds[0], count=0)] * (width - len(kinds)) for kinds in lists]


# --- Small tables, filled by the functions of `memory` and `step`, for the search to combine ---

# Memory and time of a layout are sums of parts, each of which depends on only a few degrees. Every
# part is computed here once for each value of those degrees, by the same functions that
# `memory.peak` and `step.step_time` use; `planner.search` only looks up, multiplies by counts, adds
# and compares. Each function returns its numbers by name.

Numbers = dict[str, float]


def layer_numbers(shape: TransformerShape) -> dict[str, int]:
    """The index of a layer of each kind in the model, by kind: "dense", "experts"."""
    return {
        "experts" if shape.has_experts(layer) else "dense": layer
        for layer, _ in shape.layer_kinds()
    }


def activation_parts(question: Question, recipe: Recipe, row: Row) -> Numbers:
    """Bytes and FLOP of one micro-batch, by part; they depend on tp and micro_batch / cp."""
    job = question.job(row.layout(), recipe)
    indices, head = (
        INDEX_BYTES * job.local_tokens.inside,
        stage.head_work(job, question.assumptions),
    )
    parts: Numbers = {
        "first_bytes": indices + activations.embedding_activation_bytes(job),
        "last_bytes": indices + activations.output_activation_bytes(job),
        "last_head": activations.output_activation_bytes(job),
        "last_temporary": activations.loss_temporary_bytes(job),
        "last_matmul": head.matmul_flop,
        "last_touched": head.memory_bytes,
    }
    for kind, layer in layer_numbers(job.shape).items():
        work = stage.layer_work(job, question.assumptions, layer)
        parts |= {
            f"{kind}_bytes": activations.layer_activation_bytes(job, layer),
            f"{kind}_temporary": activations.recomputed_bytes(job, layer)
            + activations.layer_gradients_bytes(job, layer),
            f"{kind}_matmul": work.matmul_flop,
            f"{kind}_attention": work.attention_flop,
            f"{kind}_touched": work.memory_bytes,
        }
    return parts


def state_parts(question: Question, row: Row, kinds: Sequence[StageKind]) -> list[list[Numbers]]:
    """[kind, ZeRO stage]: bytes of states and buffers, and seconds of optimizer and dp.

    They depend on tp, pp, ep, and on the layers and ends of the stage.
    """
    jobs = [question.job(row.layout(zero_stage)) for zero_stage in ZERO_STAGES]
    sent = [replace(job, cluster=question.reached) for job in jobs]
    return [_states_of(question, jobs, data_seconds(question, sent, kind), kind) for kind in kinds]


def _states_of(
    question: Question, jobs: Sequence[Job], exchanges: Sequence[Numbers], kind: StageKind
) -> list[Numbers]:
    recipe = question.recipe
    local = states.local_parameters(question.shape, jobs[0].layout, kind.stage)
    lines = []
    for zero_stage, job in zip(ZERO_STAGES, jobs, strict=True):
        kept = states.sharded_states(local, recipe, job.layout)
        buffers = states.sharding_buffers(local, recipe, job.layout)
        whole = buffers["gathered_gradients_bytes"] * (
            not states.whole_gradients_stay(recipe, job.layout)
        )
        numbers: Numbers = {
            "bytes": kept.total_bytes + sum(buffers.values()),
            "loss_bytes": kept.total_bytes + sum(buffers.values()) - whole,
            "gradients_bytes": kept.gradients_bytes,
            "update_bytes": kept.total_bytes + states.update_bytes(local, recipe, job.layout),
            "update_s": stage.update_seconds(job, question.assumptions, local),
            "sum_s": stage.accumulation_seconds(job, local),
        }
        lines.append(numbers | exchanges[zero_stage])
    return lines


# Quantities of messages in the tables, and the properties of `Collective` that they sum.
KNOWN = {"s": "waited_s", "hideable_s": "hideable_s", "bytes": "hideable_bytes"}


def known_of(messages: Iterable[Collective], prefix: str) -> Numbers:
    """Seconds of messages, seconds that may be hidden, and bytes sent in them: "prefix_s", …"""
    several = tuple(messages)
    return {
        f"{prefix}_{name}": sum(getattr(each, value) for each in several)
        for name, value in KNOWN.items()
    }


def data_seconds(question: Question, sent: Sequence[Job], kind: StageKind) -> list[Numbers]:
    """Quantities of dp messages by ZeRO stage: "once" per step, "each" per micro-batch.

    Stage 2 has the messages of stage 1, but reduces gradients in every micro-batch.
    """
    policy, lines = question.assumptions.policy, []
    found: tuple[Collective, ...] = ()
    for zero_stage, job in zip(ZERO_STAGES, sent, strict=True):
        if zero_stage != 2:
            found = step_traffic(job, kind.stage, policy=policy, axes=("dp",)).collectives
        often = [m for m in found if (zero_stage == 2 and m.kind == "gradients") or zero_stage == 3]
        steps = job.layout.accumulation if zero_stage == 3 else 1
        each = {name: value / steps for name, value in known_of(often, "each").items()}
        lines.append(known_of([m for m in found if m not in often], "once") | each)
    return lines


@lru_cache(maxsize=64)  # every line of a table uses the same few
def toy(shape: TransformerShape, layers: int, kind: str) -> TransformerShape:
    """A copy of the model with `layers` layers, all dense or all with experts."""
    if kind == "experts":
        return replace(shape, layers=layers, dense_layers=0, ffn=shape.expert_width)
    none: dict[str, Any] = dict.fromkeys(
        ("dense_layers", "experts", "top_k", "shared_experts", "expert_ffn"), 0
    )
    return replace(shape, layers=layers, shared_gate=False, **none)


# The parts of the model (`Collective.place`) whose messages along an axis are counted separately.
PARTS = {
    "tp": ("layers", "embedding", "head"),
    "cp": ("layers",),
    "ep": ("experts",),
    "pp": ("layers", "ends"),
}


def message_lines(
    question: Question, recipe: Recipe, row: Row, *, shape: TransformerShape, axis: str
) -> Numbers:
    """Quantities of the messages along an axis, for each part of the model.

    Times of the α–β model are linear in the micro-batch: "…_0" is the intercept, "…_x" the slope.
    """
    samples = []
    for micro_batch in (1, 2):
        layout = row._replace(micro_batch=micro_batch).layout()
        sent: tuple[Collective, ...] = ()
        if getattr(layout, axis) > 1:
            job = Job(shape, recipe, layout, question.reached, question.sequence)
            policy = question.assumptions.policy
            sent = step_traffic(job, policy=policy, axes=(axis,)).collectives
        numbers: Numbers = {}
        for part in PARTS[axis]:
            numbers |= known_of((each for each in sent if each.place == part), part)
        samples.append(numbers)
    one, two = samples
    slopes = {f"{name}_x": two[name] - value for name, value in one.items()}
    return slopes | {f"{name}_0": 2 * value - two[name] for name, value in one.items()}
