"""FLOPs: conventions, the short formulas of the papers, and sums of leaves."""

import dataclasses
from itertools import pairwise

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
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


def test_layers_and_head_sum_to_the_model():
    conventions = {"mask": "causal", "recompute": "full", "attention": "flash"}
    layers = [flops.layer_flops(DEEPSEEK, i, 2, 16, **conventions) for i in range(3)]
    total = sum(layers, start=flops.head_flops(DEEPSEEK, 2, 16))
    assert total.leaves() == training_flops(DEEPSEEK, 2, 16, **conventions).leaves()


SHAPES = st.builds(
    lambda layers, heads, head_dim, ffn, experts, top_k, mlp, tied: TransformerShape(
        layers,
        4 * heads,
        heads,
        ffn,
        vocab=50,
        context=512,
        head_dim=head_dim,
        mlp=mlp,
        tied_embeddings=tied,
        experts=experts,
        top_k=min(top_k, experts),
    ),
    layers=st.integers(1, 40),
    heads=st.integers(1, 64),
    head_dim=st.integers(1, 64),
    ffn=st.integers(1, 9999),
    experts=st.integers(0, 64),
    top_k=st.integers(1, 64),
    mlp=st.sampled_from(["gelu", "swiglu"]),
    tied=st.booleans(),
)
BATCHES = st.tuples(st.integers(1, 99), st.integers(1, 512))
CONVENTIONS = st.fixed_dictionaries(
    {
        "mask": st.sampled_from(flops.MASKS),
        "recompute": st.sampled_from(flops.RECOMPUTE),
        "attention": st.sampled_from(flops.ATTENTION),
    }
)


@given(shape=SHAPES, batch=BATCHES, conventions=CONVENTIONS)
def test_leaves_are_never_negative_and_sum_to_the_totals(shape, batch, conventions):
    flop = training_flops(shape, *batch, **conventions)
    assert all(leaf >= 0 for leaf in flop.leaves().values())
    assert flop.hardware_flop == sum(flop.leaves().values())
    assert flop.model_flop == flop.hardware_flop - flop.recompute_flop == 3 * flop.forward_flop
    assert flop.backward_flop == 2 * flop.forward_flop + flop.recompute_flop
    assert flop.tokens == batch[0] * batch[1]


@given(shape=SHAPES, batch=BATCHES, conventions=CONVENTIONS)
def test_flops_are_proportional_to_sequences(shape, batch, conventions):
    one, many = (training_flops(shape, n, batch[1], **conventions) for n in (1, batch[0]))
    assert many.leaves() == one.times(batch[0]).leaves()


@given(shape=SHAPES, batch=BATCHES)
def test_more_recomputation_is_never_less_work(shape, batch):
    work = [
        training_flops(shape, *batch, recompute=recompute).hardware_flop
        for recompute in ("none", "selective", "full")
    ]
    assert all(less <= more for less, more in pairwise(work))
    assert work[2] < work[0] * 4 / 3


@every(
    "change",
    [
        {"shape": DEEPSEEK},
        {"sequences": 3},
        {"sequence": 17},
        {"mask": "causal"},
        {"recompute": "full"},
        {"recompute": "selective"},
        {"attention": "flash"},
    ],
)
def test_each_argument_changes_the_flops(change):
    base = {"shape": LLAMA, "sequences": 2, "sequence": 16}
    assert training_flops(**base).leaves() != training_flops(**{**base, **change}).leaves()


def test_sequence_defaults_to_the_context():
    assert training_flops(LLAMA) == training_flops(LLAMA, 1, 64)
    assert training_flops(LLAMA).model_flop_per_token * 64 == training_flops(LLAMA).model_flop


def test_explain_has_each_leaf_both_totals_and_the_convention():
    text = training_flops(DEEPSEEK, 2, 16, mask="causal", recompute="full").explain()
    words = ("projections", "scores", "mlp", "experts", "shared_experts", "router", "head")
    for word in (*words, "model", "recompute", "hardware", "causal mask", "recompute=full"):
        assert word in text
    assert "experts" not in training_flops(LLAMA).explain()


@every("change", [{"batch": 2}, {"sequence": 9}, {"layers": 3}, {"hidden": 16},
                                    {"vocab": 60}, {"recompute": "none"}])  # fmt: skip
def test_each_argument_changes_megatron_s_formula(change):
    base = {"batch": 1, "sequence": 8, "layers": 2, "hidden": 8, "vocab": 50}
    assert flops.megatron_flop(**base) != flops.megatron_flop(**{**base, **change})


@every("name", ["parameters", "layers", "heads", "head_dim", "sequence"])
def test_each_argument_changes_palm_s_formula(name):
    base = {"parameters": 100, "layers": 2, "heads": 2, "head_dim": 4, "sequence": 8}
    changed = {**base, name: 2 * base[name]}
    assert flops.palm_flop_per_token(**base) != flops.palm_flop_per_token(**changed)


def test_no_layers_take_no_flop():
    assert training_flops(DENSE, 1, 8).times(0).hardware_flop == 0


OTHER_WAYS = {"mask": "causal", "recompute": "full", "attention": "flash"}
GPT = {"batch": 4, "sequence": 512, "layers": 4, "hidden": 64, "vocab": 1000}
EIGHT, FOUR_MORE = (training_flops(DENSE, 1, tokens) for tokens in (8, 12))
REFUSED = [
    (lambda: training_flops(LLAMA, 0), "sequences must be at least 1"),
    (lambda: training_flops(LLAMA, 1, 1.5), "sequence must be a whole number"),
    (lambda: training_flops(MODELS["gpt2-124m"], 1, 2048), "longer than the 1024 positions"),
    (lambda: training_flops(LLAMA, mask="casual"), "did you mean 'causal'"),
    (lambda: training_flops(LLAMA, recompute="al"), "recompute 'al' is not one of"),
    (lambda: training_flops(LLAMA, attention="flesh"), "did you mean 'flash'"),
    (lambda: flops.layer_flops(LLAMA, 3, 1, 8), "layer 3 is above layers - 1 = 2"),
    (lambda: FlopBreakdown(1) + FlopBreakdown(2), "tokens 1 and 2 differ"),
    (lambda: flops.six_nd(float("nan"), 1), "parameters must be finite"),
    (lambda: flops.six_nd(1, -1), "tokens must be at least 0"),
    (lambda: flops.six_nd(1, 1, "selective"), "recompute 'selective' is not one of"),
    (
        lambda: flops.palm_flop_per_token(1, layers=0, heads=1, head_dim=1, sequence=1),
        "layers must be at least 1",
    ),
    (
        lambda: flops.megatron_flop(1, 1, layers=1, hidden=1, vocab=0),
        "vocab must be at least 1",
    ),
]
PROBES = by_name(
    Probe(EIGHT.times, {"layers": 2}, {"layers": 3}),
    Probe(
        training_flops,
        {"shape": DENSE},
        {"shape": MIXTURE, "sequences": 2, "sequence": 512} | OTHER_WAYS,
        see=FlopBreakdown.leaves,
    ),
    Probe(
        flops.layer_flops,
        {"shape": MIXTURE, "layer": 0, "sequences": 1, "sequence": 512},
        {"shape": LATENT, "layer": 5, "sequences": 2, "sequence": 256} | OTHER_WAYS,
        see=FlopBreakdown.leaves,
    ),
    Probe(
        flops.attention_flop,
        {"shape": DENSE, "one": EIGHT, "recompute": "full", "attention": "flash"},
        {"shape": LATENT, "one": FOUR_MORE, "recompute": "none", "attention": "standard"},
    ),
    Probe(
        flops.head_flops,
        {"shape": DENSE, "sequences": 1, "sequence": 512},
        {"shape": dataclasses.replace(DENSE, vocab=100), "sequences": 2, "sequence": 256},
        see=FlopBreakdown.leaves,
    ),
    Probe(
        flops.six_nd,
        {"parameters": 1e9, "tokens": 1e12},
        {"parameters": 2e9, "tokens": 2e12, "recompute": "full"},
    ),
    Probe(
        flops.palm_flop_per_token,
        {"parameters": 1e9, "layers": 4, "heads": 4, "head_dim": 8, "sequence": 64},
        {"parameters": 2e9, "layers": 5, "heads": 5, "head_dim": 9, "sequence": 65},
    ),
    Probe(
        flops.megatron_flop,
        GPT,
        {name: size + 1 for name, size in GPT.items()} | {"recompute": "none"},
    ),
)
RECORDS = {
    "FlopBreakdown": [
        training_flops(DENSE, 1, 512),
        training_flops(dataclasses.replace(MIXTURE, layers=9), 3, 512, recompute="full"),
    ]
}
