"""Activations of a layer against autograd's own list, byte by byte."""

import dataclasses

import pytest
import torch
from every import every
from reference_modules import SwiGLU
from test_activations import EXPERTS, LLAMA
from torch import nn
from torch.nn import functional as F

from course_lib.measure.gradients import saved_bytes
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import LatentAttention
from course_lib.theory.memory.activations import layer_activation_bytes

FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)


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


class WrittenOutNorm(KernelNorm):
    """RMSNorm as Hugging Face writes it: up to fp32, normalise, back, times the weight."""

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


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
    """One LLaMA layer: RMSNorms, grouped-query attention, SwiGLU or experts.

    It has 1, 2 or 4 norms, and norms of queries and keys, as the shape says.
    """

    def __init__(self, shape, norm=KernelNorm, repeat_kv=False, experts=None):
        super().__init__()
        self.shape, self.repeat_kv, self.head_dim = shape, repeat_kv, shape.head_width
        self.norms = nn.ModuleList(norm(shape.hidden) for _ in range(shape.layer_norms))
        counts = {"none": (), "head": (1, 1), "all": (shape.heads, shape.kv_heads)}[shape.qk_norm]
        self.qk_norms = nn.ModuleList(norm(count * self.head_dim) for count in counts)
        widths = (shape.hidden, shape.kv_width, shape.kv_width)
        self.qkv = nn.ModuleList(nn.Linear(shape.hidden, w, bias=False) for w in widths)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.mlp = Experts(shape.hidden, **experts) if experts else SwiGLU(shape.hidden, shape.ffn)

    def attention(self, x):
        q, k, v = (layer(x) for layer in self.qkv)
        if self.shape.qk_norm == "all":
            q, k = (norm(t) for norm, t in zip(self.qk_norms, (q, k), strict=True))
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)) for t in (q, k, v))
        if self.shape.qk_norm == "head":
            q, k = (norm(t) for norm, t in zip(self.qk_norms, (q, k), strict=True))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.repeat_kv:
            k, v = (t.repeat_interleave(self.shape.heads // self.shape.kv_heads, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=not self.repeat_kv
        )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x):
        if len(self.norms) == 1:
            normed = self.norms[0](x)
            return x + self.attention(normed) + self.mlp(normed)
        first, *behind, second = self.norms if len(self.norms) == 2 else self.norms[:3]
        mixed = self.attention(first(x))
        x = x + (behind[0](mixed) if behind else mixed)
        made = self.mlp(second(x))
        return x + (self.norms[3](made) if behind else made)


def measured(block, dtype, samples, sequence, hidden):
    block = block.to(dtype)
    x = torch.randn(samples, sequence, hidden, dtype=dtype, requires_grad=True)
    return saved_bytes(lambda: block(x), block)


@pytest.mark.torch_internals
@every("precision", ["fp32", "bf16"])
@every("repeat_kv", [False, True])
@every("fused", [False, True])
@every("samples", [1, 3])
def test_llama_layer_equals_autograd_s_list(samples, fused, repeat_kv, precision):
    sequence, dtype = 32, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    recipe = Recipe(precision, master_copy=False, fused_norms=fused, repeat_kv=repeat_kv)
    predicted = layer_activation_bytes(
        Job(LLAMA, recipe, Layout(micro_batch=samples), sequence=sequence)
    )
    block = Block(LLAMA, KernelNorm if fused else WrittenOutNorm, repeat_kv)
    found = measured(block, dtype, samples, sequence, LLAMA.hidden)
    tokens = samples * sequence
    statistics = 2 * tokens * 4  # one scale per norm and token
    softmax = LLAMA.heads * tokens * 4  # flash attention's log-sum-exp
    assert found == predicted + statistics + softmax


@pytest.mark.torch_internals
@every(
    ("change", "scales"),
    [
        ({"qk_norm": "head"}, 2 + LLAMA.heads + LLAMA.kv_heads),
        ({"qk_norm": "all"}, 2 + 2),
        ({"layer_norms": 4}, 4),
        ({"layer_norms": 1}, 1),
        ({"layer_norms": 4, "qk_norm": "head"}, 4 + LLAMA.heads + LLAMA.kv_heads),
    ],
)
def test_a_layer_with_other_norms_equals_autograd_s_list(change, scales):
    samples, sequence = 2, 32
    shape = dataclasses.replace(LLAMA, **change)
    predicted = layer_activation_bytes(
        Job(shape, FP32, Layout(micro_batch=samples), sequence=sequence)
    )
    found = measured(Block(shape), torch.float32, samples, sequence, shape.hidden)
    # One scale per norm and token, and flash attention's log-sum-exp.
    assert found == predicted + samples * sequence * 4 * (scales + shape.heads)


@pytest.mark.torch_internals
@every("top_k", [1, 2, 3])
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
