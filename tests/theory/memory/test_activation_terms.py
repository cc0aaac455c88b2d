"""The terms of one layer: by the paper's table, and always in sum the formula."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.activations import activation_terms, layer_activation_bytes

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
    }
    assert sum(terms.leaves().values()) == terms.total_bytes
    dense = activation_terms(Job(MODELS["deepseek-v3"], Recipe(), sequence=s), 2)
    assert (dense.routed_experts_bytes, dense.mlp_inside_bytes) == (0, 2 * s * 4 * 18432)
