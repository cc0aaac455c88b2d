"""Why a layout is rejected, and what to change, in one sentence."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from course_lib.theory.inputs import Layout, Recipe
from course_lib.theory.inputs.schedule_rules import MOST_STAGES
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.peak import worst_stage
from course_lib.theory.memory.states import MemoryBreakdown, model_states
from course_lib.theory.planner.search import Found
from course_lib.theory.planner.space import Question, divisors, tensor_degrees


def rule_broken(question: Question, layout: Layout) -> str | None:
    """A sentence on the first rule of the question that `layout` breaks, or None."""
    per_node, batch = question.cluster.gpus_per_node, question.global_batch
    try:
        layout.check(question.shape, question.sequence)
        layout.check_world(question.cluster.world)
    except ValueError as error:
        return str(error)
    if per_node % layout.tp:
        return (
            f"tp {layout.tp} does not lie within a node of {per_node} GPUs: take a divisor of "
            f"{per_node}, since tensor parallelism waits for every message"
        )
    if layout.global_batch != batch:
        return (
            f"micro_batch*accumulation*dp = {layout.micro_batch}*{layout.accumulation}*{layout.dp} "
            f"is not global_batch {batch}: change accumulation"
        )
    for name, values in question.only.items():
        value = getattr(layout, name, None)
        alone = name == "zero_stage" and layout.shard_ranks == 1
        if value is not None and not alone and value not in values:
            listed = ", ".join(map(str, values))
            return f"{name} {value} was left out of the question: take {listed}, or allow it"
    return None


def too_large(question: Question, layout: Layout, recipe: Recipe) -> str | None:
    """A sentence on what needs too much memory, with a remedy; None if the layout fits."""
    stage, bill = need(question, layout, recipe)
    capacity = question.capacity_bytes
    if bill.total_bytes <= capacity:
        return None
    parts = {
        "parameters": bill.parameters_bytes,
        "gradients": bill.consumers["gradients"],
        "optimizer states": bill.consumers["optimizer"],
        "activations": bill.inputs_bytes + bill.consumers["intermediate results"],
        "buffers": bill.consumers["temporary buffers"],
    }
    what = max(parts, key=lambda part: parts[part])
    digits = 1 if bill.total_bytes > 1.05 * capacity else 4  # never "80.8 GB of 80.8 GB"
    return (
        f"stage {stage} needs {format_bytes(bill.total_bytes, digits=digits)} of "
        f"{format_bytes(capacity, digits=digits)}: {what} {format_bytes(parts[what], digits=1)}; "
        f"{remedy(question, layout, recipe, what == 'activations')}"
    )


def need(question: Question, layout: Layout, recipe: Recipe) -> tuple[int, MemoryBreakdown]:
    """The pipeline rank that needs most memory, and its breakdown."""
    return worst_stage(question.job(layout, recipe), overhead_bytes=question.overhead_bytes)


def remedy(question: Question, layout: Layout, recipe: Recipe, activations: bool) -> str:
    """The first single change that makes it fit; `activations`: try to reduce those first."""
    tried = [*_for_activations(layout, recipe), *_for_states(layout, recipe)]
    if not activations:
        tried = [*_for_states(layout, recipe), *_for_activations(layout, recipe)]
    closest: tuple[int, str] | None = None
    for words, other, other_recipe in [*tried, *_for_both(layout, recipe)]:
        if rule_broken(question, other) or not question.allows("recompute", other_recipe.recompute):
            continue
        size = need(question, other, other_recipe)[1].total_bytes
        if size <= question.capacity_bytes:
            return f"try {words}"
        closest = min(closest or (size, words), (size, words))
    if closest is None:
        return "take more GPUs or a smaller model"
    return (
        f"no single change makes it fit, with {closest[1]} it still needs "
        f"{format_bytes(closest[0], digits=1)}: change several, or take more GPUs"
    )


Change = tuple[str, Layout, Recipe]


def _for_activations(layout: Layout, recipe: Recipe) -> Iterator[Change]:
    """Changes that reduce activations: more recomputation, then smaller micro-batches."""
    kinds = ("none", "selective", "full")
    for kind in kinds[kinds.index(recipe.recompute) + 1 :]:
        yield f"recompute={kind}", layout, replace(recipe, recompute=kind)
    for micro_batch in reversed(divisors(layout.micro_batch)[:-1]):
        steps = layout.accumulation * (layout.micro_batch // micro_batch)
        smaller = replace(layout, micro_batch=micro_batch, accumulation=steps)
        yield f"micro_batch={micro_batch}", smaller, recipe


def _for_states(layout: Layout, recipe: Recipe) -> Iterator[Change]:
    """Changes that reduce states: higher ZeRO stages, if there are ranks to shard over."""
    if layout.shard_ranks > 1:
        for stage in range(layout.zero_stage + 1, 4):
            yield f"zero_stage={stage}", replace(layout, zero_stage=stage), recipe


def _for_both(layout: Layout, recipe: Recipe) -> Iterator[Change]:
    """Changes that reduce both: higher tp, pp or cp with less data parallelism."""
    for name in ("tp", "pp", "cp"):
        for factor in divisors(layout.dp)[1:]:
            degrees = {name: factor * getattr(layout, name), "dp": layout.dp // factor}
            degrees["accumulation"] = layout.accumulation * factor
            degrees["sequence_parallel"] = layout.sequence_parallel or name == "tp"
            degrees["stage_layers"] = None if name == "pp" else layout.stage_layers
            try:
                other = replace(layout, **degrees)
            except ValueError:  # not allowed by experts or the schedule
                continue
            yield f"{name}={degrees[name]} with dp={degrees['dp']}", other, recipe


def check_one_layer(question: Question) -> None:
    """Raise ValueError if all GPUs together cannot hold the states of the largest layer."""
    cluster, shape = question.cluster, question.shape
    largest = max(shape.layer_parameters(layer).total for layer, _ in shape.layer_kinds())
    size = model_states(largest, question.recipe).model_states_bytes
    room = question.capacity_bytes - question.overhead_bytes
    if room <= 0:
        raise ValueError(
            f"overhead_bytes {question.overhead_bytes} leaves nothing of the "
            f"{question.capacity_bytes} bytes of a {cluster.accelerator.name} after margin "
            f"{question.margin:g}: give a smaller overhead"
        )
    if size > cluster.world * room:
        raise ValueError(
            f"nodes {cluster.nodes} with {cluster.gpus_per_node} {cluster.accelerator.name} each "
            f"are too small for one layer: its states take {format_bytes(size)} and all GPUs have "
            f"{format_bytes(cluster.world * room)}: take at least "
            f"{math.ceil(size / room)} GPUs, or a smaller model"
        )


# --- Counts of rejected layouts, by remedy and by broken rule ---


def remedies(found: Found, capacity_bytes: int) -> list[tuple[str, int]]:
    """Number of unfitting layouts that more recomputation, a higher ZeRO stage or both would fit.

    "neither": other degrees or more GPUs are needed. Only layouts in the search count: with a
    single recipe, recomputation is no remedy.
    """
    import numpy

    memory = found.memory_bytes
    shown = numpy.broadcast_to(found.differs[:, None, :], memory.shape)
    allowed = numpy.where(shown, memory, numpy.inf)
    fits = allowed <= capacity_bytes
    unfit = shown & ~fits
    recompute = numpy.broadcast_to(fits.any(axis=1, keepdims=True), memory.shape)
    sharding = numpy.broadcast_to(fits.any(axis=2, keepdims=True), memory.shape)
    together = numpy.broadcast_to(fits.any(axis=(1, 2), keepdims=True), memory.shape)
    alone = recompute | sharding
    cases = {
        "either of the two": recompute & sharding,
        "recomputation": recompute & ~sharding,
        "a higher ZeRO stage": sharding & ~recompute,
        "both together": together & ~alone,
        "neither": ~together & ~alone,
    }
    return [(name, int((unfit & case).sum())) for name, case in cases.items()]


def excluded(question: Question) -> dict[str, int]:
    """Number of meshes tp × pp × cp × dp = world that break a rule, by their first broken rule."""
    broken: Counter[str] = Counter()
    tensor, most_stages = tensor_degrees(question), min(question.shape.layers, MOST_STAGES)
    for tp, pp, cp, dp in _meshes(question):
        rules = {
            "tp leaves its node": question.cluster.gpus_per_node % tp,
            "tp does not divide heads and widths": tp not in tensor,
            "more stages than layers": pp > most_stages,
            "cp · tp does not divide the sequence": question.sequence % (cp * tp),
            "dp does not divide the global batch": question.global_batch % dp,
        }
        first = next((rule for rule, breaks in rules.items() if breaks), None)
        if first:
            broken[first] += 1
    return dict(broken)


def _meshes(question: Question) -> Iterator[tuple[int, int, int, int]]:
    world = question.cluster.world
    for tp in question.allowed("tp", divisors(world)):
        for pp in question.allowed("pp", divisors(world // tp)):
            for cp in question.allowed("cp", divisors(world // tp // pp)):
                dp = world // tp // pp // cp
                if question.allows("dp", dp):
                    yield tp, pp, cp, dp
