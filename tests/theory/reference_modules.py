"""Transformers in torch, written out plainly: what the formulas of `theory` are compared with."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention over all pairs by two matrix products, (batch, heads, sequence, width) each."""
    scores = q @ k.transpose(-1, -2)
    mixed = scores.softmax(-1) @ v
    return mixed.transpose(1, 2).flatten(2)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class GroupedAttention(nn.Module):
    """Grouped-query attention, with heads of any width."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.q = linear(hidden, heads * head_dim)
        self.k = linear(hidden, kv_heads * head_dim)
        self.v = linear(hidden, kv_heads * head_dim)
        self.o = linear(heads * head_dim, hidden)
        self.core = attend

    def forward(self, x: Tensor) -> Tensor:
        q = split_heads(self.q(x), self.heads)
        k, v = (
            split_heads(part(x), self.kv_heads).repeat_interleave(self.heads // self.kv_heads, 1)
            for part in (self.k, self.v)
        )
        return self.o(self.core(q, k, v))


class LatentAttention(nn.Module):
    """DeepSeek-V2's multi-head latent attention as in its training: latents are expanded."""

    def __init__(
        self, hidden: int, heads: int, q_rank: int | None, kv_rank: int, nope: int, rope: int,
        value: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.sizes = heads, (nope, rope, value)
        width = heads * (nope + rope)
        self.q = linear(hidden, width)
        if q_rank is not None:
            self.q = nn.Sequential(
                linear(hidden, q_rank), nn.RMSNorm(q_rank), linear(q_rank, width)
            )
        self.kv_down = linear(hidden, kv_rank + rope)
        self.kv_norm = nn.RMSNorm(kv_rank)
        self.kv_up = linear(kv_rank, heads * (nope + value))
        self.o = linear(heads * value, hidden)

    def forward(self, x: Tensor) -> Tensor:
        nope, rope, value = self.sizes
        latent, position = self.kv_down(x).split([self.kv_norm.normalized_shape[0], rope], -1)
        expanded = split_heads(self.kv_up(self.kv_norm(latent)), self.heads)
        k, v = expanded.split([nope, value], -1)
        position = position.unsqueeze(1).expand(-1, self.heads, -1, -1)
        return self.o(attend(split_heads(self.q(x), self.heads), torch.cat([k, position], -1), v))


class SwiGLU(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate, self.up = linear(hidden, ffn), linear(hidden, ffn)
        self.down = linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """A router that really sends each token to its top-k experts, and shared experts for all."""

    def __init__(self, hidden: int, ffn: int, experts: int, top_k: int, shared: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = linear(hidden, experts)
        self.experts = nn.ModuleList(SwiGLU(hidden, ffn) for _ in range(experts))
        self.shared = nn.ModuleList(SwiGLU(hidden, ffn) for _ in range(shared))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.top_k, -1)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            result = result.index_add(0, rows, weights[rows, place, None] * expert(tokens[rows]))
        return result.view_as(x) + sum(expert(x) for expert in self.shared)


class Layer(nn.Module):
    def __init__(self, hidden: int, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    """Token ids in, logits out, with an untied head."""

    def __init__(self, vocab: int, hidden: int, layers: list[Layer]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(hidden)
        self.head = linear(hidden, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def decoder(
    layers: int,
    hidden: int,
    vocab: int,
    attention: Callable[[], nn.Module],
    mlp: Callable[[int], nn.Module],
) -> Decoder:
    """A decoder whose layers have these parts; the MLP may depend on the layer's number."""
    return Decoder(vocab, hidden, [Layer(hidden, attention(), mlp(n)) for n in range(layers)])
