"""Small tables, filled by the readable functions, from which a search adds up whole layouts.

Memory and time of a layout are sums of parts that depend on a few of its degrees each. Every part
is computed here once for each value of those degrees by the functions that `memory` and `steptime`
use themselves; `planner.fast` only looks up, multiplies by counts, adds and compares.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.activations import (
    embedding_activation_bytes,
    layer_activation_bytes,
    local_tokens,
    logits_bytes,
    output_activation_bytes,
    recomputed_bytes,
)
from course_lib.theory.memory.peak import INDEX_BYTES
from course_lib.theory.memory.states import local_parameters, sharded_states, sharding_buffers
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.planner.space import ZERO_STAGES, Question, Row
from course_lib.theory.planner.stages import StageKind
from course_lib.theory.step.stage import head_work, layer_work, update_seconds


def layer_numbers(shape: TransformerShape) -> tuple[int | None, int | None]:
    """A dense layer and a layer with experts; None for a kind that the model lacks."""
    experts = shape.layers - 1 if shape.experts else None
    return (None if shape.experts and not shape.dense_layers else 0), experts


def activation_parts(question: Question, recipe: Recipe, row: Row) -> dict[str, float]:
    """Bytes and FLOP of one micro-batch, by part: key (tp, micro_batch / cp, recompute)."""
    shape, sequence, layout = question.shape, question.sequence, row.layout()
    batch = (shape, recipe, row.micro_batch, sequence, layout)
    work = (shape, recipe, layout, sequence, question.assumptions)
    tokens = local_tokens(layout, row.micro_batch, sequence).inside
    indices, head = INDEX_BYTES * tokens, head_work(*work)
    parts = {
        "first_bytes": indices + embedding_activation_bytes(*batch),
        "last_bytes": indices + output_activation_bytes(*batch),
        "last_temporary": logits_bytes(shape, row.micro_batch, sequence, layout),
        "last_flop": head.flop,
        "last_touched": head.memory_bytes,
    }
    for kind, layer in zip(("dense", "expert"), layer_numbers(shape), strict=True):
        if layer is None:
            continue
        one = layer_work(*work, layer)
        parts |= {
            f"{kind}_bytes": layer_activation_bytes(*batch, layer),
            f"{kind}_temporary": recomputed_bytes(*batch, layer),
            f"{kind}_flop": one.flop,
            f"{kind}_scores": one.scores_flop,
            f"{kind}_touched": one.memory_bytes,
        }
    return parts


def state_parts(question: Question, row: Row, kind: StageKind) -> list[list[float]]:
    """For each ZeRO stage bytes of states and buffers, and seconds of optimizer and dp.

    dp is [once a step, once a micro-batch]. Key: (tp, pp, ep, layers and ends of the stage).
    """
    recipe, cluster = question.recipe, question.cluster
    local = local_parameters(question.shape, row.layout(), kind.stage)
    lines = []
    for zero_stage, seconds in zip(ZERO_STAGES, data_parts(question, row, kind), strict=True):
        where = (local, recipe, row.layout(zero_stage))
        states, buffers = sharded_states(*where), sharding_buffers(*where)
        size = states.total_bytes + sum(buffers.values())
        update = update_seconds(*where, cluster, question.assumptions)
        lines.append([size, update, *seconds])
    return lines


def messages(
    question: Question, recipe: Recipe, shape: TransformerShape, layout: Layout, stage: int = 0
) -> dict[tuple[str, str, str], float]:
    """Seconds of all collectives of a step by (axis, what, operation)."""
    habits = question.assumptions.habits
    args = (shape, recipe, layout, question.sequence, question.cluster, stage)
    times: dict[tuple[str, str, str], float] = {}
    for entry in step_traffic(*args, habits=habits).collectives:
        key = (entry.axis, entry.what, entry.operation)
        times[key] = times.get(key, 0.0) + entry.seconds
    return times


def data_parts(question: Question, row: Row, kind: StageKind) -> list[tuple[float, float]]:
    """Seconds of dp by ZeRO stage: (once a step, once a micro-batch).

    Stage 2 exchanges what stage 1 does, but gradients with every micro-batch.
    """
    steps, no_sync = row.accumulation, question.assumptions.habits.no_sync
    shape, recipe = question.shape, question.recipe

    def sums(zero_stage: int) -> tuple[float, float]:
        """Seconds of gradients and of parameters."""
        times = messages(question, recipe, shape, row.layout(zero_stage), kind.stage)
        mine = {key[1]: time for key, time in times.items() if key[0] == "dp"}
        gradients = sum(time for what, time in mine.items() if what.startswith("gradients"))
        return gradients, sum(mine.values()) - gradients

    (whole, _), (part, gathers), sharded = sums(0), sums(1), sum(sums(3)) / steps
    if no_sync:
        return [(whole, 0.0), (part + gathers, 0.0), (gathers, part), (0.0, sharded)]
    often = (gathers, part / steps)
    return [(0.0, whole / steps), often, often, (0.0, sharded)]


def toy(shape: TransformerShape, layers: int, kind: str) -> TransformerShape:
    """The model with `layers` layers, all dense or all with experts."""
    if kind == "expert":
        return replace(shape, layers=layers, dense_layers=0, ffn=shape.expert_ffn)
    nothing = {"experts": 0, "top_k": 0, "shared_experts": 0, "expert_ffn": None}
    return replace(shape, layers=layers, dense_layers=0, **nothing)


def line(seconds: Callable[[int], Sequence[float]]) -> list[float]:
    """Intercepts and slopes of what is linear in the micro-batch, as α–β times are, flat."""
    one, two = seconds(1), seconds(2)
    return [number for a, b in zip(one, two, strict=True) for number in (2 * a - b, b - a)]


def tensor_parts(question: Question, recipe: Recipe, row: Row, kind: str) -> list[float]:
    """Seconds of tp for a layer, the embedding and the head: key (tp, recompute)."""
    shape, places = toy(question.shape, 1, kind), {"embedding": 1, "head": 2, "loss": 2}

    def seconds(micro_batch: int) -> list[float]:
        layout, sums = Row(row.tp, 1, 1, 1, 1, micro_batch, 1, 1).layout(), [0.0, 0.0, 0.0]
        for (axis, what, _), time in messages(question, recipe, shape, layout).items():
            sums[places.get(what, 0)] += time * (axis == "tp")
        return sums

    return line(seconds)


def ring_parts(question: Question, recipe: Recipe, row: Row, kind: str) -> list[float]:
    """Seconds of cp for a layer: key (tp, cp, recompute)."""
    shape = toy(question.shape, 1, kind)

    def seconds(micro_batch: int) -> list[float]:
        layout = Row(row.tp, 1, row.cp, 1, 1, micro_batch, 1, 1).layout()
        return [axis_seconds(question, recipe, shape, layout, "cp")]

    return line(seconds)


def expert_parts(question: Question, recipe: Recipe, row: Row) -> list[float]:
    """Seconds of ep for a layer with experts: key (tp, ep, recompute)."""
    shape = toy(question.shape, 1, "expert")

    def seconds(micro_batch: int) -> list[float]:
        layout = Row(row.tp, 1, 1, row.ep, row.ep, micro_batch, 1, 1).layout()
        return [axis_seconds(question, recipe, shape, layout, "ep")]

    return line(seconds)


def boundary_parts(question: Question, recipe: Recipe, row: Row) -> list[float]:
    """Seconds of pp for one send, and for a tied embedding: key (tp, pp)."""
    if row.pp == 1:
        return [0.0] * 4
    shape = toy(question.shape, row.pp, "dense")
    ranks = question.cluster.world // row.tp // row.pp

    def seconds(micro_batch: int) -> list[float]:
        layout = Row(row.tp, row.pp, 1, 1, ranks, micro_batch, 1, 1).layout()
        times = messages(question, recipe, shape, layout)
        return [
            sum(time for key, time in times.items() if key[0] == "pp" and key[2] == operation)
            for operation in ("send-recv", "all-reduce")
        ]

    return line(seconds)


def axis_seconds(
    question: Question, recipe: Recipe, shape: TransformerShape, layout: Layout, axis: str
) -> float:
    """Seconds of one axis in a step."""
    times = messages(question, recipe, shape, layout)
    return sum(time for key, time in times.items() if key[0] == axis)
