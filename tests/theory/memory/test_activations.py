"""Activations of a layer: Korthikanti's forms, the terms, and what each degree cuts."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from every import every
from hypothesis import given
from hypothesis import strategies as st
from probes import DENSE, FULL, JOB, LLAMA_LIKE, PLAIN, STANDARD

from course_lib.measure.peak import log_memory
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import LOSSES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.activations import (
    activation_terms,
    embedding_activation_bytes,
    head_activation_bytes,
    layer_activation_bytes,
    loss_copies,
    loss_temporary_bytes,
    needed_terms,
    output_activation_bytes,
    recomputed_bytes,
)

LLAMA = TransformerShape(
    layers=1, hidden=64, heads=8, ffn=96, vocab=50, context=32, kv_heads=2, **LLAMA_LIKE
)
LLAMA4 = replace(LLAMA, kv_heads=4)
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 48}
GPT3 = MODELS["gpt3-175b"]
GELU = Recipe(attention="standard", dropout=True)


@given(
    heads=st.sampled_from([8, 16, 96]),
    width=st.sampled_from([4, 64, 128]),
    tp=st.sampled_from([1, 2, 4, 8]),
    micro_batch=st.integers(1, 4),
    sequence=st.sampled_from([8, 64, 2048]),
)
def test_layer_is_korthikanti_s_formula(heads, width, tp, micro_batch, sequence):
    # arXiv:2205.05198, equations 1 to 6 and table 2.
    s, b, h, a, t = sequence, micro_batch, heads * width, heads, tp
    shape = TransformerShape(1, h, heads, 4 * h, 100, 2048)

    def kept(recompute="none", **layout):
        layout = Layout(**layout, micro_batch=b)
        return layer_activation_bytes(
            Job(shape, replace(GELU, recompute=recompute), layout, sequence=s)
        )

    both = {"tp": t, "sequence_parallel": True}
    assert kept() == pytest.approx(s * b * h * (34 + 5 * a * s / h))
    assert kept(tp=t) == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)))
    assert kept(**both) == pytest.approx(s * b * h / t * (34 + 5 * a * s / h))
    assert kept("selective", tp=t) == pytest.approx(s * b * h * (10 + 24 / t))
    assert kept("selective", **both) == pytest.approx(34 * s * b * h / t)
    assert kept("full", tp=t) == 2 * s * b * h
    assert kept("full", **both) == 2 * s * b * h / t


def test_standard_attention_under_context_parallelism_sees_all_keys():
    scores = [
        layer_activation_bytes(Job(LLAMA, Recipe(attention=attention), Layout(cp=4), sequence=32))
        for attention in ("standard", "flash")
    ]
    assert scores[0] - scores[1] == LLAMA.heads * (32 // 4) * 32 * 2


def test_routed_tokens_not_experts_decide():
    base = replace(LLAMA, **EXPERTS, ffn=48)
    more = replace(base, experts=64)
    router = 32 * 4 * 60  # fp32 probabilities
    kept = [layer_activation_bytes(Job(shape, Recipe(), sequence=32)) for shape in (base, more)]
    assert kept[1] - kept[0] == router
    spread = layer_activation_bytes(Job(base, Recipe(), Layout(dp=4, ep=4), sequence=32))
    assert spread == kept[0]


def test_imbalance_scales_the_routed_part_alone():
    shape = replace(LLAMA, **EXPERTS, ffn=48)
    kept = [
        layer_activation_bytes(Job(shape, Recipe(imbalance=imbalance), sequence=32))
        for imbalance in (1.0, 1.5)
    ]
    assert kept[1] - kept[0] == 0.5 * 32 * 2 * 2 * (2 * 64 + 4 * 48)


def test_recomputation_brings_back_what_was_not_kept():
    for recompute in ("selective", "full"):
        recipe = replace(GELU, recompute=recompute)
        kept = layer_activation_bytes(Job(GPT3, recipe, sequence=2048))
        back = recomputed_bytes(Job(GPT3, recipe, sequence=2048))
        assert kept + back == layer_activation_bytes(Job(GPT3, GELU, sequence=2048))
    assert recomputed_bytes(Job(GPT3, GELU, sequence=2048)) == 0


@given(
    name=st.sampled_from(
        ["gpt2-124m", "llama2-7b", "llama2-70b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3"]
    ),
    dropout=st.booleans(),
    repeat_kv=st.booleans(),
    fused=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["flash", "standard"]),
    micro_batch=st.integers(1, 4),
    tp=st.sampled_from([1, 2, 4]),
    sp=st.booleans(),
    parameters=st.sampled_from(["fp32", "bf16"]),
)
def test_the_sum_of_the_terms_is_one_formula(
    name, dropout, repeat_kv, fused, recompute, attention, micro_batch, tp, sp, parameters
):
    recipe = Recipe(
        parameters=parameters,
        master_copy=parameters == "bf16",
        gradients=parameters,
        dropout=dropout,
        repeat_kv=repeat_kv,
        fused_norms=not fused,
        fused_swiglu=fused,
        recompute=recompute,
        attention=attention,
    )
    layout = Layout(tp=tp, sequence_parallel=sp and tp > 1, micro_batch=micro_batch)
    job = Job(MODELS[name], recipe, layout, sequence=512)
    for layer in (0, MODELS[name].layers - 1):
        terms = activation_terms(job, layer)
        assert layer_activation_bytes(job, layer) == terms.total_bytes == by_one_formula(job, layer)


def by_one_formula(job, layer):
    """Bytes for each token outside the tensor-parallel region, inside it, and for each score."""
    shape, recipe, t = job.shape, job.recipe, job.layout.tp
    e, h = recipe.weight_bytes, shape.hidden
    tokens = job.layout.micro_batch * job.sequence
    outside = tokens // t if job.layout.sequence_parallel else tokens
    if recipe.recompute == "full":
        return outside * h * e
    norm = e + (0 if recipe.fused_norms else 4)
    latents = shape.mla.kv_rank + shape.mla.q_rank if shape.mla else 0
    residual = h * (2 * norm + 2 * e + 2 * recipe.dropout) + latents * (norm + e)
    kv = shape.heads / t if recipe.repeat_kv else max(shape.kv_heads / t, 1)
    key, value = shape.head_width, shape.value_width
    heads = (shape.heads / t) * (key + value) + kv * (key + value)
    mlp = 2 if shape.mlp == "gelu" else 3 if recipe.fused_swiglu else 4
    widths = shape.ffn
    if shape.has_experts(layer):
        residual += shape.top_k * 2 * h * e + 4 * shape.experts
        widths = (shape.top_k + shape.shared_experts) * shape.expert_width
    scores = 0
    if recipe.attention == "standard" and recipe.recompute == "none":
        scores = shape.heads / t * job.sequence * (e + (e + 1) * recipe.dropout)
    return outside * residual + tokens * ((heads + mlp * widths / t) * e + scores)


def test_operators_keep_attention_and_every_second_matmul():
    """Of q k v o gate up down: q, v, gate and down; the layer's input and attention's output."""
    job = Job(LLAMA, Recipe(recompute="operators"), sequence=32)
    s, h, ffn, kv = 32, LLAMA.hidden, LLAMA.ffn, LLAMA.kv_width
    terms = activation_terms(job)
    assert terms.total_bytes == 2 * s * (h + h + kv + h + ffn + h)
    # All that backward needs is there once: what is kept, but for the last output, and the rest.
    needed = needed_terms(job).total_bytes
    assert recomputed_bytes(job) == needed - (terms.total_bytes - 2 * s * h)


def test_gathered_inputs_are_whole_on_every_rank_where_they_are_kept():
    def inputs(**layout):
        layout = Layout(tp=4, sequence_parallel=True, **layout)
        return activation_terms(Job(LLAMA4, layout=layout, sequence=32)).matrix_inputs_bytes

    assert inputs(keep_gathered=True) == 4 * inputs() == 2 * 2 * 32 * 64


def test_latent_attention_has_a_leaf_and_shared_experts_as_well():
    """DeepSeek-V3: latents of 1536 and 512, each the input of a norm and of a matrix."""
    s, h, width = 512, 7168, 2048
    terms = activation_terms(Job(MODELS["deepseek-v3"], Recipe(dropout=True), sequence=s), 60)
    assert terms.leaves() == {
        "layer input": 0,
        "norms": 2 * s * 2 * h,
        "matrix inputs": 2 * s * 2 * h,
        "latents": 2 * s * 2 * (1536 + 512),
        "queries": 2 * s * 128 * (128 + 64),
        "keys values": 2 * s * 128 * (128 + 64 + 128),
        "scores": 0,
        "attention output": 2 * s * 128 * 128,
        "mlp inside": 0,
        "routed experts": 2 * s * 8 * (2 * h + 4 * width),
        "shared experts": 2 * s * 4 * width,
        "router": 4 * s * 256,
        "dropout masks": 2 * s * h,
        "unused": 0,
    }
    assert sum(terms.leaves().values()) == terms.total_bytes
    dense = activation_terms(Job(MODELS["deepseek-v3"], Recipe(), sequence=s), 2)
    assert (dense.routed_experts_bytes, dense.mlp_inside_bytes) == (0, 2 * s * 4 * 18432)


POLICY = Recipe(recompute="operators")
TERMS = [
    activation_terms(Job(shape, recipe, sequence=512))
    for shape in (DENSE, replace(LLAMA, context=512))
    for recipe in (STANDARD, PLAIN, FULL, POLICY)
]
MORE_TERMS = [
    activation_terms(Job(MODELS["deepseek-v3"], sequence=512), layer) for layer in (0, 60)
]
RECORDS = {
    "ActivationTerms": TERMS + MORE_TERMS,
    "LossCopies": [loss_copies(replace(JOB, recipe=Recipe(loss=name))) for name in LOSSES],
}


# --- ends ---


def test_head_is_korthikanti_s_under_tensor_and_sequence_parallelism():
    # 4·s·b·h/t·(1 + v/h) and s·b·h/t: arXiv:2205.05198, section 4.3.
    shape = replace(GPT3, vocab=51200)
    s, b, h, t = 2048, 2, shape.hidden, 8
    layout = Layout(tp=t, sequence_parallel=True, micro_batch=b)
    job = Job(shape, GELU, layout, sequence=s)
    assert embedding_activation_bytes(job) == s * b * h / t
    assert output_activation_bytes(job) == 4 * s * b * h / t * (1 + shape.vocab / h)
    parts = embedding_activation_bytes(job) + output_activation_bytes(job)
    assert head_activation_bytes(job) == parts


@every("loss", ["eager", "in-place", "fused", "chunked"])
def test_each_loss_has_its_copies(loss):
    job = Job(GPT3, Recipe(loss=loss), sequence=2048)
    copies = loss_copies(job)
    expected = {"eager": (4, 8), "in-place": (4, 2), "fused": (2, 0), "chunked": (2, 12 / 8)}
    assert (copies.kept_bytes, copies.temporary_bytes) == expected[loss]
    assert loss_temporary_bytes(job) == expected[loss][1] * 2048 * 50257


@every("dtype", [torch.bfloat16, torch.float32])
def test_eager_cross_entropy_makes_the_copies_that_are_told(dtype):
    tokens, vocab, hidden = 64, 1024, 8
    weight = torch.randn(vocab, hidden, dtype=dtype, requires_grad=True)
    states = torch.randn(tokens, hidden, dtype=dtype, requires_grad=True)
    with log_memory() as log:
        loss = F.cross_entropy((states @ weight.T).float(), torch.randint(vocab, (tokens,)))
        forward = log.mark()
        kept = log.timeline[-1]
        loss.backward()
    precision = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    recipe = Recipe(precision, master_copy=False, gradients=precision, loss="eager")
    copies = loss_copies(Job(GPT3, recipe))
    count = tokens * vocab
    assert kept == pytest.approx(copies.kept_bytes * count, rel=0.01)
    together = copies.kept_bytes + copies.temporary_bytes
    assert log.since(forward).peak_bytes == pytest.approx(together * count, rel=0.01)
