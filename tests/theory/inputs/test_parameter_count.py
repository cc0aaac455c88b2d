"""Totals of a parameter count, and how it explains itself."""

import dataclasses

from probes import DENSE, MIXTURE, Probe, by_name
from test_shape import DEEPSEEK, SMALL

from course_lib.theory.inputs.parameter_count import ParameterCount, sum_counts


def test_totals_are_sums_of_leaves():
    count = ParameterCount(*range(1, 11))
    assert count.total == 55
    assert count.experts == count.chosen_experts + count.idle_experts
    assert count.active == count.total - count.idle_experts
    assert count.without_embedding == count.total - count.embedding - count.positions
    assert count.times(3).total == (count + count + count).total == 165


def test_explain_of_a_mixture_names_its_leaves_and_the_active_parameters():
    text = DEEPSEEK.parameters().explain()
    for word in ("chosen_experts", "idle_experts", "shared_experts", "router", "active"):
        assert word in text
        assert word not in SMALL.parameters().explain()


def test_explain_has_every_leaf_and_the_total():
    text = SMALL.parameters().explain()
    for word in ("embedding", "attention", "mlp", "norms", "head", "total"):
        assert word in text


PROBES = by_name(
    Probe(DENSE.parameters().times, {"layers": 2}, {"layers": 3}),
    Probe(sum_counts, {"counts": [DENSE.parameters()]}, {"counts": []}),
)
RECORDS = {
    "ParameterCount": [DENSE.parameters(), dataclasses.replace(MIXTURE, vocab=100).parameters()]
}
