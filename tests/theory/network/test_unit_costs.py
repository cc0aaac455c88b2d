"""Costs of FSDP's units: against the model's FLOP, and gathers by bytes over bandwidth."""

from dataclasses import replace

import pytest
from probes import DENSE, SLOW_LINK, Probe, by_name

from course_lib.theory.compute.flops import six_nd
from course_lib.theory.inputs.hardware import NDR
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.unit_life import unit_life
from course_lib.theory.network.unit_costs import unit_costs

SEVEN = MODELS["llama2-7b"]


def test_all_passes_are_six_flop_for_each_weight_of_a_matrix():
    units = unit_costs(SEVEN, Recipe(), 8, NDR, tokens=8192, flop_per_s=4e14)
    computing_s = sum(unit.forward_s + unit.backward_s for unit in units)
    weights = SEVEN.parameters().total - SEVEN.vocab * SEVEN.hidden  # the embedding is looked up
    assert computing_s == pytest.approx(six_nd(weights, 8192) / 4e14, rel=1e-4)
    assert unit_life(units).computing_s == pytest.approx(computing_s)


def test_a_gather_is_seven_eighths_over_the_bandwidth():
    units = unit_costs(SEVEN, Recipe(gradients="fp32"), 8, NDR, tokens=1, flop_per_s=1e9)
    layer = units[1]
    assert layer.weights_bytes == 2 * 202_383_360
    assert layer.gather_s == pytest.approx(layer.weights_bytes * 7 / 8 / 50e9, rel=0.01)
    assert layer.reduce_s == pytest.approx(2 * layer.gather_s, rel=0.02)
    assert len(units) == 33


REFUSED = [
    (
        lambda: unit_costs(SEVEN, Recipe(), 1, NDR, tokens=1, flop_per_s=1),
        "ranks must be at least 2",
    ),
    (
        lambda: unit_costs(MODELS["mixtral-8x7b"], Recipe(), 2, NDR, tokens=1, flop_per_s=1),
        "take a dense model",
    ),
]
PROBES = by_name(
    Probe(
        unit_costs,
        {
            "shape": DENSE,
            "recipe": Recipe(),
            "ranks": 2,
            "link": NDR,
            "tokens": 100,
            "flop_per_s": 1e12,
        },
        {
            "shape": replace(DENSE, layers=3),
            "recipe": Recipe(gradients="fp32"),
            "ranks": 4,
            "link": SLOW_LINK,
            "tokens": 200,
            "flop_per_s": 2e12,
        },
    ),
)
