"""Shapes: what each size changes, and what cannot be built."""

import dataclasses

import pytest
from every import every
from probes import DENSE, LATENT, LLAMA_LIKE, MIXTURE, Given, Probe, by_name, check, values
from refused import rows

from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import (
    LatentAttention,
    Matrix,
    ParameterCount,
    TransformerShape,
)
from course_lib.theory.memory.activations import head_activation_bytes, layer_activation_bytes


def test_layers_embedding_and_head_sum_to_the_model():
    for shape in (*MODELS.values(), SMALL, DEEPSEEK):
        layers = [shape.layer_parameters(layer) for layer in range(shape.layers)]
        parts = [shape.embedding_parameters(), *layers, shape.head_parameters()]
        assert sum(parts, ParameterCount()) == shape.parameters()
        assert sum(count for _, count in shape.layer_kinds()) == shape.layers


def test_kv_width_follows_head_dim():
    wide = dataclasses.replace(SMALL, head_dim=5, kv_heads=2)
    assert (wide.head_width, wide.value_width, wide.kv_width) == (5, 5, 10)
    assert (DEEPSEEK.head_width, DEEPSEEK.value_width) == (6, 5)


SMALL = TransformerShape(layers=2, hidden=8, heads=4, ffn=32, vocab=50, context=16)
DEEPSEEK = TransformerShape(
    layers=3,
    hidden=16,
    heads=4,
    ffn=40,
    vocab=50,
    context=16,
    **LLAMA_LIKE,
    experts=6,
    top_k=2,
    shared_experts=2,
    expert_ffn=12,
    dense_layers=1,
    mla=LatentAttention(10, 8, 4, 2, 5),
)


@every(
    "change",
    [
        {"layers": 3},
        {"hidden": 16},
        {"kv_heads": 2},
        {"ffn": 33},
        {"vocab": 51},
        {"context": 17},
        {"mlp": "swiglu"},
        {"norm": "rmsnorm"},
        {"biases": False},
        {"learned_positions": False},
        {"tied_embeddings": False},
        {"norm": "plain"},
        {"head_dim": 3},
        {"attention_biases": "none"},
        {"attention_biases": "qkv"},
        {"qk_norm": "head"},
        {"qk_norm": "all"},
        {"layer_norms": 4},
        {"experts": 4, "top_k": 1},
        {"mla": LatentAttention(4, 4, 2, 2, 2)},
    ],
)
def test_each_size_changes_the_count(change):
    changed = dataclasses.replace(SMALL, **change)
    assert changed.parameters().total != SMALL.parameters().total


@every(
    "change",
    [
        {"experts": 7},
        {"top_k": 3},
        {"shared_experts": 0},
        {"shared_gate": True},
        {"expert_ffn": 13},
        {"dense_layers": 2},
        {"ffn": 41},
        *(
            {"mla": dataclasses.replace(DEEPSEEK.mla, **{leaf.name: 7})}
            for leaf in dataclasses.fields(LatentAttention)
        ),
    ],
)
def test_each_size_of_a_mixture_changes_the_count(change):
    changed = dataclasses.replace(DEEPSEEK, **change).parameters()
    assert (changed.total, changed.active) != (
        DEEPSEEK.parameters().total,
        DEEPSEEK.parameters().active,
    )


def test_biases_and_norms_of_attention_by_hand():
    # 2 layers of 8 numbers, 4 query heads and 2 key-value heads of 3: queries 12, keys 6, values 6.
    base = dataclasses.replace(
        SMALL, head_dim=3, kv_heads=2, biases=False, learned_positions=False, norm="rmsnorm"
    )
    without = base.parameters().total
    for change, more in (
        ({"attention_biases": "none"}, 0),
        ({"attention_biases": "qkv"}, 2 * (12 + 6 + 6)),
        ({"attention_biases": "all"}, 2 * (12 + 6 + 6 + 8)),
        ({"qk_norm": "head"}, 2 * (3 + 3)),
        ({"qk_norm": "all"}, 2 * (12 + 6)),
        ({"layer_norms": 1}, -2 * 8),
        ({"layer_norms": 4}, 2 * 16),
        ({"norm": "plain"}, -(2 * 16 + 8)),
    ):
        assert dataclasses.replace(base, **change).parameters().total == without + more, change


def test_the_gate_of_shared_experts_is_one_more_output_of_the_router():
    gated = dataclasses.replace(DEEPSEEK, shared_gate=True)
    mixtures = DEEPSEEK.layers - DEEPSEEK.dense_layers
    assert gated.parameters().router == DEEPSEEK.parameters().router + mixtures * DEEPSEEK.hidden
    flop = [training_flops(shape, 1, 1).router_flop for shape in (DEEPSEEK, gated)]
    assert flop[1] - flop[0] == 6 * mixtures * DEEPSEEK.hidden


def test_heads_change_the_count_under_grouped_query_attention():
    two, four = (
        TransformerShape(2, 8, heads, 32, 50, 16, kv_heads=2).parameters().total for heads in (2, 4)
    )
    assert two != four


def test_bad_latents_and_layers_are_explained():
    with pytest.raises(TypeError, match="mla must be a LatentAttention or None, got tuple"):
        dataclasses.replace(SMALL, mla=(1, 2, 3, 4, 5))
    with pytest.raises(ValueError, match="kv_rank must be at least 1"):
        LatentAttention(None, 0, 1, 1, 1)
    with pytest.raises(ValueError, match="q_rank must be at least 1"):
        LatentAttention(0, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="layer 2 is above layers - 1 = 1"):
        SMALL.layer_parameters(2)
    with pytest.raises(ValueError, match="sequence 17 is longer than the 16 positions"):
        SMALL.check_sequence(17)


def test_kinds_of_layers():
    assert DEEPSEEK.layer_kinds() == [(0, 1), (2, 2)]
    assert DEEPSEEK.layer_kinds(1) == [(2, 2)]
    assert DEEPSEEK.layer_kinds(0, 1) == [(0, 1)]
    assert SMALL.layer_kinds() == [(1, 2)]
    assert SMALL.layer_kinds(1, 1) == []


def seen(shape):
    """Parameters, FLOPs and activations of a shape, with the sequence it can take."""
    job = Job(shape, sequence=min(shape.context, 512))
    layer = layer_activation_bytes(job, shape.layers - 1)
    flops = training_flops(shape, 1, job.sequence)
    return shape.parameters(), flops, head_activation_bytes(job), layer, shape.context


EXPERTS = {
    name: getattr(MIXTURE, name)
    for name in ("experts", "top_k", "shared_experts", "expert_ffn", "dense_layers")
}
REFUSED = [
    *rows(
        lambda change: dataclasses.replace(SMALL, **change),
        [
            ({"heads": 3}, "hidden 8 is not divisible by heads 3"),
            ({"kv_heads": 3}, "heads 4 is not divisible by kv_heads 3"),
            ({"layers": 0}, "layers must be at least 1"),
            ({"vocab": 2.5}, "vocab must be a whole number"),
            ({"mlp": "swigloo"}, "did you mean 'swiglu'"),
            ({"norm": "layer norm"}, "did you mean 'layernorm'"),
            ({"biases": 1}, "biases must be True or False"),
            ({"head_dim": 0}, "head_dim must be at least 1"),
            ({"attention_biases": "qvk"}, "did you mean 'qkv'"),
            ({"attention_biases": True}, "attention_biases True is not one of none, qkv, all"),
            ({"qk_norm": "heads"}, "did you mean 'head'"),
            ({"layer_norms": 0}, "layer_norms must be at least 1"),
            ({"layer_norms": 5}, "layer_norms must be at most 4"),
            ({"shared_gate": 1}, "shared_gate must be True or False"),
            (
                {"experts": 4, "top_k": 1, "shared_gate": True},
                "or shared_gate=False",
            ),
            ({"mla": LatentAttention(4, 4, 2, 2, 2), "qk_norm": "head"}, "leave them at None and"),
            (
                {"mla": LatentAttention(4, 4, 2, 2, 2), "attention_biases": "all"},
                "leave them at None and",
            ),
            (
                {"top_k": 2},
                "top_k 2 is used only with experts, got experts 0: set experts, or top_k=0",
            ),
            ({"dense_layers": 1}, "dense_layers 1 is used only with experts"),
            ({"expert_ffn": 8}, "set experts, or expert_ffn=0"),
            ({"experts": 4}, "top_k must be at least 1"),
            ({"experts": 4, "top_k": 5}, "top_k 5 is above experts = 4: take at most 4"),
            (
                {"experts": 4, "top_k": 1, "dense_layers": 2},
                "dense_layers 2 is above layers - 1 = 1",
            ),
            ({"experts": 4, "top_k": 1, "expert_ffn": 8}, "ffn 32 is used by no layer"),
            ({"experts": -1}, "experts must be at least 0"),
            ({"mla": LatentAttention(4, 4, 2, 2, 2), "head_dim": 2}, "leave both at None"),
            ({"mla": LatentAttention(4, 4, 2, 2, 2), "kv_heads": 2}, "leave both at None"),
        ],
    ),
]
PROBES = by_name(
    Probe(
        LatentAttention,
        {"q_rank": 96, "kv_rank": 64, "nope_dim": 32, "rope_dim": 16, "value_dim": 32},
        {"q_rank": None, "kv_rank": 65, "nope_dim": 33, "rope_dim": 17, "value_dim": 33},
        see=lambda latent: seen(dataclasses.replace(LATENT, mla=latent)),
    ),
    Probe(
        TransformerShape,
        values(DENSE),
        {
            "layers": 7,
            "hidden": 1024,
            "heads": 16,
            "ffn": 1024,
            "vocab": 100,
            "context": 600,
            "kv_heads": 2,
            "mlp": "swiglu",
            "norm": "rmsnorm",
            "biases": False,
            "learned_positions": False,
            "tied_embeddings": False,
            "head_dim": 32,
            "experts": Given(16, EXPERTS, before=8),
            "top_k": Given(3, EXPERTS),
            "shared_experts": Given(2, EXPERTS),
            "expert_ffn": Given(512, EXPERTS),
            "dense_layers": Given(3, EXPERTS),
            "mla": Given(LATENT.mla, {"kv_heads": 8}),
            "attention_biases": "qkv",
            "qk_norm": "head",
            "layer_norms": 4,
            "shared_gate": Given(True, EXPERTS),
        },
        see=seen,
    ),
    Probe(
        Matrix,
        {"place": "mlp", "inputs": 8, "outputs": 16, "bias": True},
        {"place": "attention", "inputs": 9, "outputs": 17, "bias": False, "copies": 4, "used": 2},
        see=lambda one: (one.place, one.copies * one.parameters, one.forward_flop),
    ),
    check(DENSE.check_sequence, {"sequence": 1024}, {"sequence": 1025}),
    Probe(MIXTURE.has_experts, {"layer": 1}, {"layer": 2}),
    Probe(MIXTURE.layer_matrices, {"layer": 1}, {"layer": 2}),
    Probe(MIXTURE.layer_parameters, {"layer": 1}, {"layer": 2}),
    Probe(MIXTURE.layer_kinds, {"start": 1, "stop": 4}, {"start": 0, "stop": 5}),
)


# --- parameter count ---


def test_totals_are_sums_of_leaves():
    count = ParameterCount(*range(1, 11))
    assert count.total == 55
    assert count.experts == count.chosen_experts + count.idle_experts
    assert count.active == count.total - count.idle_experts
    assert count.times(3).total == (count + count + count).total == 165


PROBES_PARAMETER_COUNT = by_name(
    Probe(DENSE.parameters().times, {"layers": 2}, {"layers": 3}),
)
RECORDS = {
    "ParameterCount": [DENSE.parameters(), dataclasses.replace(MIXTURE, vocab=100).parameters()]
}


PROBES |= PROBES_PARAMETER_COUNT
