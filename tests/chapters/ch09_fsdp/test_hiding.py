"""Tokens that hide FSDP's messages: by a published bound, and by the times of one layer."""

import pytest
from probes import H100

from course_lib.chapters.ch09_fsdp.hiding import fsdp_hiding_tokens
from course_lib.theory.inputs.hardware import Cluster, Link
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.network.traffic import group_link
from course_lib.theory.network.zero import unit_costs

FSDP2 = Recipe("fp32", "fp32", master_copy=False, compute="bf16")


def test_a_tpu_v5p_needs_2550_tokens():
    # jax-ml.github.io/scaling-book/training: C = 4.6e14, W = 2 * 9e10, bf16, many chips.
    found = fsdp_hiding_tokens(Recipe(), 8960, flop_per_s=4.6e14, bytes_per_s=2 * 9e10)
    assert found.forward == found.backward == pytest.approx(2550, rel=0.01)


@pytest.mark.parametrize("gpus, tokens", [(8, 2200), (1024, 2475)])
def test_h100_need_2475_tokens_over_nodes(gpus, tokens):
    # jax-ml.github.io/scaling-book/gpus: 990e12 / 450e9 inside a node, / 400e9 over nodes, without
    # the factor (n-1)/n.
    rate = group_link(Cluster(H100, nodes=128), "all-gather", gpus).bytes_per_s
    found = fsdp_hiding_tokens(Recipe(), gpus, flop_per_s=990e12, bytes_per_s=rate)
    assert found.backward * gpus / (gpus - 1) == pytest.approx(tokens)


@pytest.mark.parametrize("recipe", [Recipe(), FSDP2])
@pytest.mark.parametrize("model", ["gpt2-1.5b", "llama2-70b"])
def test_a_layer_then_computes_as_long_as_it_sends(recipe, model):
    link = Link("no latency", 50e9, 0.0)
    found = fsdp_hiding_tokens(recipe, 8, flop_per_s=4e14, bytes_per_s=link.bytes_per_s)

    def layer(tokens):
        costs = unit_costs(MODELS[model], recipe, 8, link, tokens=round(tokens), flop_per_s=4e14)
        return costs[1]

    forward, backward = layer(found.forward), layer(found.backward)
    assert forward.forward_s == pytest.approx(forward.gather_s, rel=1e-3)
    sent_s = backward.gather_s + backward.reduce_s
    assert backward.backward_s == pytest.approx(sent_s, rel=1e-3)


def test_fp32_reductions_need_half_as_many_tokens_again():
    rates = {"flop_per_s": 4e14, "bytes_per_s": 5e10}
    narrow, wide = (fsdp_hiding_tokens(recipe, 64, **rates) for recipe in (Recipe(), FSDP2))
    assert wide.forward == narrow.forward == narrow.backward
    assert wide.backward == pytest.approx(1.5 * narrow.backward)
    repeated = fsdp_hiding_tokens(Recipe(recompute="full"), 64, **rates)
    assert repeated.backward == pytest.approx(narrow.backward * 2 / 3)


RATES = {"flop_per_s": 1, "bytes_per_s": 1}
REFUSED = [
    (lambda: fsdp_hiding_tokens(Recipe(), 1, **RATES), "ranks must be at least 2"),
    *(
        (
            lambda rate=rate: fsdp_hiding_tokens(Recipe(), 2, **RATES | {rate: 0}),
            f"{rate} must be above 0",
        )
        for rate in RATES
    ),
]
RECORDS = {
    "HidingTokens": [
        fsdp_hiding_tokens(recipe, 8, flop_per_s=1e14, bytes_per_s=5e10)
        for recipe in (Recipe(), FSDP2, Recipe(recompute="full", compute="fp32"))
    ],
}
