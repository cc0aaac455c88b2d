"""Shapes: what each size changes, and what cannot be built."""

from dataclasses import replace

from probes import DENSE, LATENT, LLAMA_LIKE, MIXTURE, Given, Probe, by_name, check, values
from refused import rows

from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.shape import LatentAttention, Matrix, TransformerShape
from course_lib.theory.memory.activations import head_activation_bytes, layer_activation_bytes

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


def test_biases_and_norms_of_attention_by_hand():
    # 2 layers of 8 numbers, 4 query heads and 2 key-value heads of 3: queries 12, keys 6, values 6.
    base = replace(
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
        assert replace(base, **change).parameters().total == without + more, change


def test_experts_and_the_gate_of_shared_ones_which_is_one_more_output_of_the_router():
    gated = replace(DEEPSEEK, shared_gate=True)
    mixtures = DEEPSEEK.layers - DEEPSEEK.dense_layers
    assert gated.parameters().router == DEEPSEEK.parameters().router + mixtures * DEEPSEEK.hidden
    count, expert = DEEPSEEK.parameters(), 3 * 16 * 12
    assert count.experts == mixtures * 6 * expert
    assert count.active == count.total - mixtures * (6 - 2) * expert
    flop = [training_flops(shape, 1, 1).router_flop for shape in (DEEPSEEK, gated)]
    assert flop[1] - flop[0] == 6 * mixtures * DEEPSEEK.hidden


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
        lambda change: replace(SMALL, **change),
        [
            ({"heads": 3}, "hidden 8 is not divisible by heads 3"),
            ({"kv_heads": 3}, "heads 4 is not divisible by kv_heads 3"),
            ({"attention_biases": True}, "attention_biases True is not one of none, qkv, all"),
            ({"layer_norms": 5}, "layer_norms must be at most 4"),
            ({"experts": 4, "top_k": 1, "shared_gate": True}, "or shared_gate=False"),
            ({"mla": LatentAttention(4, 4, 2, 2, 2), "qk_norm": "head"}, "leave them at None and"),
            (
                {"mla": LatentAttention(4, 4, 2, 2, 2), "attention_biases": "all"},
                "leave them at None and",
            ),
            ({"top_k": 2}, "top_k 2 is used only with experts, got experts 0: set experts, or"),
            ({"dense_layers": 1}, "dense_layers 1 is used only with experts"),
            ({"expert_ffn": 8}, "set experts, or expert_ffn=0"),
            ({"experts": 4, "top_k": 5}, "top_k 5 is above experts = 4: take at most 4"),
            ({"experts": 4, "top_k": 1, "dense_layers": 2}, "dense_layers 2 is above layers - 1 ="),
            ({"experts": 4, "top_k": 1, "expert_ffn": 8}, "ffn 32 is used by no layer"),
            ({"mla": LatentAttention(4, 4, 2, 2, 2), "head_dim": 2}, "leave both at None"),
            ({"mla": LatentAttention(4, 4, 2, 2, 2), "kv_heads": 2}, "leave both at None"),
        ],
    )
]
PROBES = by_name(
    Probe(
        TransformerShape,
        values(DENSE),
        {
            "mlp": "swiglu",
            "norm": "rmsnorm",
            "experts": Given(16, EXPERTS, before=8),
            "top_k": Given(3, EXPERTS),
            "shared_experts": Given(2, EXPERTS),
            "expert_ffn": Given(512, EXPERTS),
            "dense_layers": Given(3, EXPERTS),
            "mla": Given(LATENT.mla, {"kv_heads": 8}),
            "attention_biases": "qkv",
            "qk_norm": "head",
            "shared_gate": Given(True, EXPERTS),
        },
        see=seen,
    ),
    Probe(
        Matrix,
        {"place": "mlp", "inputs": 8, "outputs": 16, "bias": True},
        see=lambda one: (one.place, one.copies * one.parameters, one.forward_flop),
    ),
    check(DENSE.check_sequence, {"sequence": 1024}),
    Probe(MIXTURE.has_experts, {"layer": 1}),
    Probe(MIXTURE.layer_matrices, {"layer": 1}),
    Probe(MIXTURE.layer_parameters, {"layer": 1}),
)
RECORDS = {"ParameterCount": [DENSE.parameters(), replace(MIXTURE, vocab=100).parameters()]}
