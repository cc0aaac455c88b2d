"""Activations of a layer: Korthikanti's forms, the terms, and what each degree cuts."""

import dataclasses
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from every import every
from hypothesis import given
from hypothesis import strategies as st
from probes import DENSE, FULL, JOB, LLAMA_LIKE, PLAIN, STANDARD, Probe, by_name
from refused import rows

from course_lib.measure.peak import log_memory
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import LOSSES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory import activations
from course_lib.theory.memory.activations import (
    activation_terms,
    embedding_activation_bytes,
    gathered_tokens,
    head_activation_bytes,
    layer_activation_bytes,
    layer_gradients_bytes,
    logit_count,
    loss_copies,
    loss_temporary_bytes,
    needed_terms,
    norm_bytes,
    output_activation_bytes,
    recomputed_bytes,
)

LLAMA = TransformerShape(
    layers=1,
    hidden=64,
    heads=8,
    ffn=96,
    vocab=50,
    context=32,
    kv_heads=2,
    **LLAMA_LIKE,
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
        recipe = dataclasses.replace(GELU, recompute=recompute)
        return layer_activation_bytes(
            Job(shape, recipe, Layout(**layout, micro_batch=b), sequence=s)
        )

    both = {"tp": t, "sequence_parallel": True}
    assert kept() == pytest.approx(s * b * h * (34 + 5 * a * s / h))
    assert kept(tp=t) == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)))
    assert kept(**both) == pytest.approx(s * b * h / t * (34 + 5 * a * s / h))
    assert kept("selective", tp=t) == pytest.approx(s * b * h * (10 + 24 / t))
    assert kept("selective", **both) == pytest.approx(34 * s * b * h / t)
    assert kept("full", tp=t) == 2 * s * b * h
    assert kept("full", **both) == 2 * s * b * h / t


def test_context_parallelism_divides_what_the_sequence_has():
    one, four = (
        layer_activation_bytes(Job(LLAMA, Recipe(), Layout(cp=cp), sequence=32)) for cp in (1, 4)
    )
    assert four * 4 == one
    assert logit_count(Job(LLAMA, layout=Layout(cp=4), sequence=32)) * 4 == logit_count(
        Job(LLAMA, sequence=32)
    )


def test_standard_attention_under_context_parallelism_sees_all_keys():
    scores = [
        layer_activation_bytes(Job(LLAMA, Recipe(attention=attention), Layout(cp=4), sequence=32))
        for attention in ("standard", "flash")
    ]
    assert scores[0] - scores[1] == LLAMA.heads * (32 // 4) * 32 * 2


def test_tensor_ranks_beyond_the_key_value_heads_keep_a_whole_head_each():
    kept = [
        layer_activation_bytes(
            Job(LLAMA, Recipe(), Layout(tp=tp, sequence_parallel=True), sequence=32)
        )
        for tp in (2, 4, 8)
    ]
    head = 2 * 32 * 2 * LLAMA.head_width  # keys and values of one head
    assert kept[0] == 2 * kept[1] - head
    assert kept[1] == 2 * kept[2] - head


def test_routed_tokens_not_experts_decide():
    base = dataclasses.replace(LLAMA, **EXPERTS, ffn=48)
    more = dataclasses.replace(base, experts=64)
    router = 32 * 4 * 60  # fp32 probabilities
    kept = [layer_activation_bytes(Job(shape, Recipe(), sequence=32)) for shape in (base, more)]
    assert kept[1] - kept[0] == router
    spread = layer_activation_bytes(Job(base, Recipe(), Layout(dp=4, ep=4), sequence=32))
    assert spread == kept[0]


def test_sequence_parallelism_cuts_a_layer_with_experts_altogether():
    shape = dataclasses.replace(LLAMA, **EXPERTS, ffn=48)
    whole, split, shared = (
        layer_activation_bytes(Job(shape, Recipe(), layout, sequence=32))
        for layout in (Layout(), Layout(tp=2, sequence_parallel=True), Layout(tp=2))
    )
    assert split * 2 == whole
    # Without it every rank keeps all inputs and outputs of layer and experts, and the router's.
    outside = 32 * (2 * (4 * 64 + 2 * 2 * 64) + 4 * 4)
    assert shared * 2 == whole + outside


def test_imbalance_scales_the_routed_part_alone():
    shape = dataclasses.replace(LLAMA, **EXPERTS, ffn=48)
    kept = [
        layer_activation_bytes(Job(shape, Recipe(imbalance=imbalance), sequence=32))
        for imbalance in (1.0, 1.5)
    ]
    assert kept[1] - kept[0] == 0.5 * 32 * 2 * 2 * (2 * 64 + 4 * 48)


def test_leading_dense_layers_keep_a_dense_mlp():
    shape = MODELS["deepseek-v3"]
    kept = [layer_activation_bytes(Job(shape, Recipe(), sequence=1024), n) for n in (0, 2, 3, 60)]
    assert kept[0] == kept[1] != kept[2] == kept[3]


def test_recomputation_brings_back_what_was_not_kept():
    for recompute in ("selective", "full"):
        recipe = dataclasses.replace(GELU, recompute=recompute)
        kept = layer_activation_bytes(Job(GPT3, recipe, sequence=2048))
        back = recomputed_bytes(Job(GPT3, recipe, sequence=2048))
        assert kept + back == layer_activation_bytes(Job(GPT3, GELU, sequence=2048))
    assert recomputed_bytes(Job(GPT3, GELU, sequence=2048)) == 0


@every(
    "change",
    [
        {"parameters": "fp32", "master_copy": False},
        {"attention": "standard"},
        {"recompute": "full"},
        {"dropout": True},
        {"fused_norms": False},
        {"fused_swiglu": True},
        {"repeat_kv": True},
    ],
)
def test_each_part_of_a_recipe_changes_a_layer(change):
    recipes = Recipe(), dataclasses.replace(Recipe(), **change)
    kept = [layer_activation_bytes(Job(LLAMA, recipe, sequence=32)) for recipe in recipes]
    assert kept[0] != kept[1]


def bytes_of_a_layer(layout=None, sequence=32, layer=0, recompute="none"):
    job = Job(LLAMA, Recipe(recompute=recompute), Layout(**(layout or {})), sequence=sequence)
    return layer_activation_bytes(job, layer)


def test_layer_formula_is_korthikanti_s():
    # s·b·h·(34 + 5·a·s/h), arXiv:2205.05198 equation 1, for GPT-3 175B.
    shape, s, b = MODELS["gpt3-175b"], 2048, 1
    recipe = Recipe(attention="standard", dropout=True)
    expected = s * b * shape.hidden * (34 + 5 * shape.heads * s / shape.hidden)
    assert (
        activations.layer_activation_bytes(Job(shape, recipe, Layout(micro_batch=b), sequence=s))
        == expected
    )


def test_selective_and_full_recomputation_are_korthikanti_s():
    shape, s, b = MODELS["gpt3-175b"], 2048, 4
    kept = {
        recompute: activations.layer_activation_bytes(
            Job(
                shape,
                Recipe(attention="standard", dropout=True, recompute=recompute),
                Layout(micro_batch=b),
                sequence=s,
            )
        )
        for recompute in ("selective", "full")
    }
    assert kept == {"selective": 34 * s * b * shape.hidden, "full": 2 * s * b * shape.hidden}


GPT3 = MODELS["gpt3-175b"]
PAPER = Recipe(dropout=True, attention="standard")


def test_the_papers_34_and_5as_over_h():
    """Korthikanti et al. 2022, section 4.1: attention 11, MLP 19, norms 4, and the scores."""
    terms = activation_terms(Job(GPT3, PAPER, sequence=2048))
    sbh = 2048 * GPT3.hidden
    sizes = {name: size / sbh for name, size in terms.leaves().items() if size}
    assert sizes == {
        "norms": 4,
        "matrix inputs": 4,
        "queries": 2,
        "keys values": 4,
        "scores": 5 * 96 * 2048 / GPT3.hidden,
        "attention output": 2,
        "mlp inside": 16,
        "dropout masks": 2,
    }
    assert sum(sizes.values()) == 34 + 80


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


def test_full_recomputation_keeps_the_input_alone():
    terms = activation_terms(
        Job(GPT3, replace(PAPER, recompute="full"), Layout(micro_batch=2), sequence=2048)
    )
    assert terms.total_bytes == terms.layer_input_bytes == 2 * 2 * 2048 * 12288
    assert terms.explain("GiB").splitlines() == [
        f"{'layer input':<18}{'96.00 MiB':>12}",
        f"{'total':<18}{'96.00 MiB':>12}",
    ]


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


def test_experts_have_leaves_of_their_own():
    """Mixtral 8x7B: 2 of 8 experts a token, SwiGLU of 14336, no dense MLP and no shared expert."""
    s, h, ffn = 512, 4096, 14336
    terms = activation_terms(Job(MODELS["mixtral-8x7b"], Recipe(imbalance=1.25), sequence=s))
    assert terms.leaves() == {
        "layer input": 0,
        "norms": 2 * s * 2 * h,
        "matrix inputs": 2 * s * 2 * h,
        "latents": 0,
        "queries": 2 * s * 32 * 128,
        "keys values": 2 * s * 8 * 2 * 128,
        "scores": 0,
        "attention output": 2 * s * 32 * 128,
        "mlp inside": 0,
        "routed experts": 1.25 * 2 * s * 2 * (2 * h + 4 * ffn),
        "shared experts": 0,
        "router": 4 * s * 8,
        "dropout masks": 0,
        "unused": 0,
    }
    assert sum(terms.leaves().values()) == terms.total_bytes


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
LAYER = ({"job": JOB, "layer": 0}, {"layer": 5})
REFUSED = [
    *rows(
        lambda arguments: bytes_of_a_layer(**arguments),
        [
            ({"layout": {"micro_batch": 0}}, "micro_batch must be at least 1"),
            ({"sequence": 0}, "sequence must be at least 1"),
            ({"sequence": 30, "layout": {"cp": 4}}, "sequence 30 is not divisible by cp 4"),
            ({"layer": 1}, "layer 1 is above layers - 1 = 0"),
            ({"layer": 1, "recompute": "full"}, "layer 1 is above layers - 1 = 0"),
        ],
    ),
]
PROBES = by_name(
    Probe(TERMS[0].explain, {}, {"unit": "GiB"}),
    Probe(activation_terms, *LAYER, silent=("cluster",)),
    Probe(layer_activation_bytes, *LAYER, silent=("cluster",)),
    Probe(needed_terms, *LAYER, silent=("cluster",)),
    Probe(
        recomputed_bytes,
        {"job": dataclasses.replace(JOB, recipe=FULL), "layer": 0},
        {"layer": 5},
        silent=("cluster",),
    ),
    Probe(
        layer_gradients_bytes,
        {"job": replace(JOB, recipe=PLAIN), "layer": 0},
        {"layer": 5},
        silent=("recipe", "cluster"),
    ),
    Probe(gathered_tokens, {"job": JOB}, {}, silent=("shape", "recipe", "cluster")),
    Probe(
        norm_bytes,
        {"recipe": PLAIN, "width": 512},
        {"recipe": Recipe(fused_norms=False), "width": 8},
    ),
)
RECORDS = {"ActivationTerms": TERMS + MORE_TERMS}


# --- ends ---


def test_head_formula_is_korthikanti_s():
    # 4·s·b·h·(1 + v/h) and s·b·h of dropout mask, arXiv:2205.05198 section 4.3.
    shape, s, b = MODELS["gpt3-175b"], 2048, 1
    h, v = shape.hidden, shape.vocab
    kept = head_activation_bytes(
        Job(shape, Recipe(dropout=True), Layout(micro_batch=b), sequence=s)
    )
    assert kept == 4 * s * b * h * (1 + v / h) + s * b * h


def test_vocabulary_is_cut_and_rounded_up_over_tensor_ranks():
    assert logit_count(Job(GPT3, layout=Layout(tp=8), sequence=2048)) == 2048 * -(-50257 // 8)


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


EAGER = replace(JOB, recipe=Recipe(loss="eager"))
PROBES_ENDS = {
    function.__name__: Probe(function, {"job": JOB}, {}, silent=("cluster",))
    for function in (
        embedding_activation_bytes,
        output_activation_bytes,
        head_activation_bytes,
    )
} | {
    "logit_count": Probe(logit_count, {"job": JOB}, {}, silent=("recipe", "cluster")),
    "loss_copies": Probe(
        loss_copies,
        {"job": EAGER},
        {},
        silent=("shape", "micro_batch", "cluster", "sequence"),
    ),
    "loss_temporary_bytes": Probe(loss_temporary_bytes, {"job": EAGER}, {}, silent=("cluster",)),
}
RECORDS_ENDS = {
    "LossCopies": [loss_copies(replace(JOB, recipe=Recipe(loss=name))) for name in LOSSES]
}


PROBES |= PROBES_ENDS
RECORDS |= RECORDS_ENDS
