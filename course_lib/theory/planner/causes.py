"""Why layouts are rejected, counted: rules that meshes break, and what would make layouts fit."""

from collections import Counter
from collections.abc import Iterator

from course_lib.theory.inputs.schedule_rules import MOST_STAGES
from course_lib.theory.planner.search import Found
from course_lib.theory.planner.space import Question, divisors, tensor_degrees


def remedies(found: Found, capacity_bytes: int) -> list[tuple[str, int]]:
    """How many layouts that do not fit would with the most recomputation, ZeRO-3, or both.

    "neither": other degrees or more GPUs are needed. Only what the search looked at counts: with
    one recipe there is nothing more to recompute.
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
    """Meshes tp × pp × cp × dp = world that break a rule, by the first rule that they break."""
    broken: Counter[str] = Counter()
    tensor = set(tensor_degrees(question))
    for tp, pp, cp, dp in _meshes(question):
        rule = _first_rule(question, tensor, (tp, pp, cp, dp))
        if rule:
            broken[rule] += 1
    return dict(broken)


def _meshes(question: Question) -> Iterator[tuple[int, int, int, int]]:
    world = question.cluster.world
    for tp in question.allowed("tp", divisors(world)):
        for pp in question.allowed("pp", divisors(world // tp)):
            for cp in question.allowed("cp", divisors(world // tp // pp)):
                dp = world // tp // pp // cp
                if question.allows("dp", dp):
                    yield tp, pp, cp, dp


def _first_rule(
    question: Question, tensor: set[int], mesh: tuple[int, int, int, int]
) -> str | None:
    """The sentence of one mesh; `tensor`: the degrees that heads and widths allow."""
    tp, pp, cp, dp = mesh
    if question.cluster.gpus_per_node % tp:
        return "tp leaves its node"
    if tp not in tensor:
        return "tp does not divide heads and widths"
    if pp > min(question.shape.layers, MOST_STAGES):
        return "more stages than layers"
    if question.sequence % (cp * tp):
        return "cp · tp does not divide the sequence"
    if question.global_batch % dp:
        return "dp does not divide the global batch"
    return None
