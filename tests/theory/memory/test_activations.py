"""Activations against autograd's own list, byte by byte, and against Korthikanti's forms."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from course_lib.measure.saved_tensors import saved_bytes
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape
from course_lib.theory.memory.activations import layer_activation_bytes, recomputed_bytes
from course_lib.theory.memory.ends import (
    embedding_activation_bytes,
    head_activation_bytes,
    logits_bytes,
    output_activation_bytes,
)

FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
LLAMA = TransformerShape(
    layers=1,
    hidden=64,
    heads=8,
    ffn=96,
    vocab=50,
    context=32,
    kv_heads=2,
    mlp="swiglu",
    norm="rmsnorm",
    biases=False,
    learned_positions=False,
    tied_embeddings=False,
)
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 48}


class FusedNorm(torch.autograd.Function):
    """RMSNorm that keeps its input and one scale per token, as the CUDA kernels do."""

    @staticmethod
    def forward(context, x, weight):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        context.save_for_backward(x, weight, scale)
        return (x.float() * scale).to(x.dtype) * weight


class KernelNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return FusedNorm.apply(x, self.weight)


class WrittenOutNorm(nn.Module):
    """RMSNorm as Hugging Face writes it: up to fp32, normalise, back, times the weight."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


class SwiGLU(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate, self.up = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Top-k routing written out: every routed token is copied, computed, weighed and added."""

    def __init__(self, hidden, experts, top_k, expert_ffn):
        super().__init__()
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(hidden, expert_ffn) for _ in range(experts))
        self.top_k = top_k

    def forward(self, x):
        tokens = x.flatten(0, 1)
        probabilities = self.router(tokens).softmax(-1, dtype=torch.float32)
        # Round robin instead of top-k: every expert gets equally many tokens.
        rows = torch.arange(len(tokens))
        result = torch.zeros_like(tokens)
        for turn in range(self.top_k):
            chosen = (rows + turn) % len(self.experts)
            for number, expert in enumerate(self.experts):
                mine = (chosen == number).nonzero().squeeze(-1)
                weight = probabilities[mine, number].to(x.dtype).unsqueeze(-1)
                weighed = expert(tokens[mine]) * weight
                result = result.index_put((mine,), weighed, accumulate=True)
        return result.view_as(x)


class FlashCore(torch.autograd.Function):
    """Attention that keeps what the flash kernels keep: queries, keys, values and output."""

    @staticmethod
    def forward(context, q, k, v):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        context.save_for_backward(q, k, v, out)
        return out


class Latent(nn.Module):
    """Latent attention: down to a narrow latent, norm, up; one rotary key for all heads."""

    def __init__(self, hidden, heads, mla):
        super().__init__()
        self.heads, self.mla = heads, mla
        self.q_down = nn.Linear(hidden, mla.q_rank, bias=False)
        self.kv_down = nn.Linear(hidden, mla.kv_rank + mla.rope_dim, bias=False)
        self.norms = nn.ModuleList(KernelNorm(width) for width in (mla.q_rank, mla.kv_rank))
        self.q_up = nn.Linear(mla.q_rank, heads * (mla.nope_dim + mla.rope_dim), bias=False)
        self.kv_up = nn.Linear(mla.kv_rank, heads * (mla.nope_dim + mla.value_dim), bias=False)
        self.out = nn.Linear(heads * mla.value_dim, hidden, bias=False)

    def forward(self, x):
        mla, by_head = self.mla, (self.heads, -1)
        q = self.q_up(self.norms[0](self.q_down(x))).unflatten(-1, by_head)
        latent, rope = (
            part.clone() for part in self.kv_down(x).split((mla.kv_rank, mla.rope_dim), -1)
        )
        up = self.kv_up(self.norms[1](latent)).unflatten(-1, by_head)
        k, v = up.split((mla.nope_dim, mla.value_dim), -1)
        k = torch.cat((k, rope.unsqueeze(2).expand(-1, -1, self.heads, -1)), -1)
        mixed = FlashCore.apply(*(t.transpose(1, 2) for t in (q, k, v.contiguous())))
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """One LLaMA layer: RMSNorm, grouped-query attention, SwiGLU or experts."""

    def __init__(self, shape, written_out=False, repeat_kv=False, experts=None):
        super().__init__()
        norm = WrittenOutNorm if written_out else KernelNorm
        self.norms = nn.ModuleList(norm(shape.hidden) for _ in range(2))
        widths = (shape.hidden, shape.kv_width, shape.kv_width)
        self.qkv = nn.ModuleList(nn.Linear(shape.hidden, w, bias=False) for w in widths)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)
        if experts is None:
            self.mlp = SwiGLU(shape.hidden, shape.ffn)
        else:
            self.mlp = Experts(shape.hidden, **experts)
        self.head_dim, self.repeat_kv = shape.hidden // shape.heads, repeat_kv
        self.group = shape.heads // shape.kv_heads

    def forward(self, x):
        normed = self.norms[0](x)
        q, k, v = (
            layer(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for layer in self.qkv
        )
        if self.repeat_kv:
            k, v = (t.repeat_interleave(self.group, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=not self.repeat_kv
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


def measured(block, dtype, samples, sequence, hidden):
    block = block.to(dtype)
    x = torch.randn(samples, sequence, hidden, dtype=dtype, requires_grad=True)
    return saved_bytes(lambda: block(x), block)


@pytest.mark.torch_internals
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("repeat_kv", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("samples", [1, 3])
def test_llama_layer_equals_autograd_s_list(samples, fused, repeat_kv, precision):
    sequence, dtype = 32, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    recipe = Recipe(precision, master_copy=False, fused_norms=fused, repeat_kv=repeat_kv)
    predicted = layer_activation_bytes(
        Job(LLAMA, recipe, Layout(micro_batch=samples), sequence=sequence)
    )
    block = Block(LLAMA, written_out=not fused, repeat_kv=repeat_kv)
    found = measured(block, dtype, samples, sequence, LLAMA.hidden)
    tokens = samples * sequence
    statistics = 2 * tokens * 4  # one scale per norm and token
    softmax = LLAMA.heads * tokens * 4  # flash attention's log-sum-exp
    assert found == predicted + statistics + softmax


@pytest.mark.torch_internals
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_layer_with_experts_equals_autograd_s_list(top_k):
    samples, sequence, experts = 2, 32, {**EXPERTS, "top_k": top_k}
    shape = dataclasses.replace(LLAMA, **experts, ffn=experts["expert_ffn"])
    predicted = layer_activation_bytes(
        Job(shape, FP32, Layout(micro_batch=samples), sequence=sequence)
    )
    found = measured(Block(LLAMA, experts=experts), torch.float32, samples, sequence, LLAMA.hidden)
    tokens = samples * sequence
    statistics = (2 + LLAMA.heads) * tokens * 4
    routing = top_k * tokens * (8 + 4)  # number and weight of each routed token
    assert found == predicted + statistics + routing


def test_latent_attention_equals_autograd_s_list():
    samples, sequence = 2, 32
    mla = LatentAttention(q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=12)
    shape = dataclasses.replace(LLAMA, kv_heads=8, mla=mla)
    without_mlp = layer_activation_bytes(
        Job(shape, FP32, Layout(micro_batch=samples), sequence=sequence)
    ) - (
        # Its MLP, the two norms' inputs and what goes into the MLP are measured above.
        samples * sequence * 4 * (4 * shape.ffn + 3 * shape.hidden)
    )
    found = measured(
        Latent(shape.hidden, shape.heads, mla), torch.float32, samples, sequence, shape.hidden
    )
    assert found == without_mlp + samples * sequence * 2 * 4  # one scale per norm and token


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
    assert logits_bytes(Job(LLAMA, layout=Layout(cp=4), sequence=32)) * 4 == logits_bytes(
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


def test_vocabulary_is_cut_and_rounded_up_over_tensor_ranks():
    assert logits_bytes(Job(GPT3, layout=Layout(tp=8), sequence=2048)) == 4 * 2048 * -(-50257 // 8)


def test_head_is_korthikanti_s_under_tensor_and_sequence_parallelism():
    # 4·s·b·h/t·(1 + v/h) and s·b·h/t: arXiv:2205.05198, section 4.3.
    shape = dataclasses.replace(GPT3, vocab=51200)
    s, b, h, t = 2048, 2, shape.hidden, 8
    layout = Layout(tp=t, sequence_parallel=True, micro_batch=b)
    job = Job(shape, GELU, layout, sequence=s)
    assert embedding_activation_bytes(job) == s * b * h / t
    assert output_activation_bytes(job) == 4 * s * b * h / t * (1 + shape.vocab / h)
    parts = embedding_activation_bytes(job) + output_activation_bytes(job)
    assert head_activation_bytes(job) == parts


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layout": {"micro_batch": 0}}, "micro_batch must be at least 1"),
        ({"sequence": 0}, "sequence must be at least 1"),
        ({"sequence": 30, "layout": {"cp": 4}}, "sequence 30 is not divisible by cp 4"),
        ({"layer": 1}, "layer must be at most 0"),
        ({"layer": 1, "recompute": "full"}, "layer must be at most 0"),
    ],
)
def test_bad_arguments_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        bytes_of_a_layer(**arguments)


def bytes_of_a_layer(layout=None, sequence=32, layer=0, recompute="none"):
    job = Job(LLAMA, Recipe(recompute=recompute), Layout(**(layout or {})), sequence=sequence)
    return layer_activation_bytes(job, layer)
