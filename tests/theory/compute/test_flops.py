"""FLOPs: conventions, the short formulas of the papers, and sums of leaves."""

import dataclasses

import pytest
from probes import DENSE, LATENT, LLAMA_LIKE, MIXTURE, Probe, by_name

from course_lib.theory.compute import flops
from course_lib.theory.compute.flops import FlopBreakdown, training_flops
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape

LLAMA = TransformerShape(
    layers=3,
    hidden=24,
    heads=6,
    ffn=40,
    vocab=100,
    context=64,
    kv_heads=2,
    **LLAMA_LIKE,
    head_dim=8,
)
DEEPSEEK = dataclasses.replace(
    LLAMA,
    kv_heads=6,
    head_dim=None,
    experts=5,
    top_k=2,
    shared_experts=2,
    expert_ffn=12,
    dense_layers=1,
    mla=LatentAttention(10, 8, 4, 2, 5),
)


def test_flash_attention_adds_to_full_recomputation_and_makes_selective_pointless():
    extra = {
        recompute: [
            training_flops(LLAMA, 1, 16, recompute=recompute, attention=attention).recompute_flop
            for attention in ("standard", "flash")
        ]
        for recompute in ("none", "selective", "full")
    }
    again = extra["none"][1]
    assert again == 3 * 2 * 6 * 8 * 16**2
    assert extra["selective"] == [2 * again, again]
    assert extra["full"][1] == extra["full"][0] + again


def test_causal_scores_are_half_of_all():
    full, causal = (training_flops(DEEPSEEK, 2, 15, mask=mask) for mask in ("full", "causal"))
    assert 2 * causal.scores_flop == full.scores_flop
    without = [dataclasses.replace(f, scores_flop=0, convention="") for f in (full, causal)]
    assert without[0] == without[1]


def test_megatron_s_formulas_are_the_exact_count():
    shape, batch, s = MODELS["gpt-18.4b"], 3, 2048
    sizes = {"layers": shape.layers, "hidden": shape.hidden, "vocab": shape.vocab}
    for recompute in ("none", "full"):
        exact = training_flops(shape, batch, s, recompute=recompute).hardware_flop
        assert flops.megatron_flop(batch, s, **sizes, recompute=recompute) == exact
    # Korthikanti et al. charge selective recomputation three times its forward pass.
    paper, none = (
        flops.megatron_flop(batch, s, **sizes, recompute=r) for r in ("selective", "none")
    )
    exact = training_flops(shape, batch, s, recompute="selective")
    assert paper - none == 3 * exact.recompute_flop


def test_palm_s_formula_is_the_exact_count_up_to_norms():
    shape = MODELS["llama2-7b"]
    n = sum(shape.parameters()) - shape.parameters().embedding - shape.parameters().norms
    predicted = 4096 * flops.palm_flop_per_token(
        n, layers=32, heads=32, head_dim=128, sequence=4096
    )
    assert predicted == training_flops(shape, 1, 4096).model_flop


def test_six_nd_of_active_parameters_is_all_but_the_scores():
    for name in ("gpt3-175b", "llama3-70b", "mixtral-8x7b", "deepseek-v3"):
        shape = MODELS[name]
        count, flop = shape.parameters(), training_flops(shape, 1, 1024)
        multiplied = count.active - count.positions
        if not shape.tied_embeddings:
            multiplied -= count.embedding
        short = flops.six_nd(multiplied, 1024)
        assert short == pytest.approx(flop.model_flop - flop.scores_flop, rel=1e-3)


def test_sequence_defaults_to_the_context():
    assert training_flops(LLAMA) == training_flops(LLAMA, 1, 64)
    assert training_flops(LLAMA).model_flop_per_token * 64 == training_flops(LLAMA).model_flop


def test_explain_has_each_leaf_both_totals_and_the_convention():
    text = training_flops(DEEPSEEK, 2, 16, mask="causal", recompute="full").explain()
    words = ("projections", "scores", "mlp", "experts", "shared_experts", "router", "head")
    for word in (*words, "model", "recompute", "hardware", "causal mask", "recompute=full"):
        assert word in text
    assert "experts" not in training_flops(LLAMA).explain()


EIGHT, FOUR_MORE = (training_flops(DENSE, 1, tokens) for tokens in (8, 12))
REFUSED = [
    (lambda: training_flops(MODELS["gpt2-124m"], 1, 2048), "longer than the 1024 positions"),
    (lambda: flops.layer_flops(LLAMA, 3, 1, 8), "layer 3 is above layers - 1 = 2"),
    (lambda: FlopBreakdown(1) + FlopBreakdown(2), "tokens 1 and 2 differ"),
]
PROBES = by_name(
    Probe(
        flops.attention_flop,
        {"shape": DENSE, "one": EIGHT, "recompute": "full", "attention": "flash"},
        {"shape": LATENT},
    ),
    Probe(
        flops.head_flops,
        {"shape": DENSE, "sequences": 1, "sequence": 512},
        {"shape": dataclasses.replace(DENSE, vocab=100)},
        see=FlopBreakdown.leaves,
    ),
)
RECORDS = {
    "FlopBreakdown": [
        training_flops(DENSE, 1, 512),
        training_flops(dataclasses.replace(MIXTURE, layers=9), 3, 512, recompute="full"),
    ]
}
