"""Ring attention: keys and values visit every rank, queries stay."""

from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from course_lib.scratch.context.block_attention import (
    block_backward,
    block_forward,
    merge,
)
from course_lib.scratch.context.slices import SequenceRing
from course_lib.scratch.gpt import GPT, Attention, Block


class RingFunction(torch.autograd.Function):
    """Causal attention of slices (batch, heads, tokens of a rank, width).

    Liu et al. 2023, arXiv:2310.01889, section 3.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: SequenceRing
    ) -> Tensor:
        out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -inf)
        # (2, batch, heads, tokens of a rank, width)
        kv, cut = torch.stack([k, v]), ring.cut
        for owner, visitor in ring.visits(kv):
            for i, j, same in ring.pairs(owner):
                k, v = cut(visitor, j)
                block = block_forward(cut(q, i), k, v, same)
                merge(cut(out, i), cut(lse, i), block)
        ctx.save_for_backward(q, kv, out, lse)
        ctx.ring = ring
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        """A second ring; the visitors' gradients follow them one hop behind.

        They start at the visitor's first stop and end at home: n-1 hops.
        """
        q, kv, out, lse = ctx.saved_tensors
        ring, cut = ctx.ring, ctx.ring.cut
        delta = (d_out * out).sum(-1, keepdim=True)
        d_q, d_own, passing = torch.zeros_like(q), torch.zeros_like(kv), None
        for owner, visitor in ring.visits(kv):
            d_kv = torch.zeros_like(kv) if owner != ring.rank else d_own
            for i, j, same in ring.pairs(owner):
                d_rows, d_block = block_backward(
                    cut(q, i),
                    cut(visitor, j),
                    cut(lse, i),
                    cut(d_out, i),
                    cut(delta, i),
                    same,
                )
                cut(d_q, i).add_(d_rows)
                cut(d_kv, j).add_(d_block)
            if owner != ring.rank:
                if passing:
                    d_kv += passing.wait()
                passing = ring.start(d_kv)
        if passing:
            d_own += passing.wait()
        return d_q, *d_own, None


class RingAttention(Attention):
    """`attention` with the same weights, for slices of the sequence."""

    def __init__(self, attention: Attention, ring: SequenceRing) -> None:
        nn.Module.__init__(self)
        self.heads, self.ring = attention.heads, ring
        self.qkv, self.out = attention.qkv, attention.out

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return RingFunction.apply(q, k, v, self.ring)


def spread_sequence(model: GPT, ring: SequenceRing) -> None:
    """Give every layer ring attention; call the model with `ring.places`."""
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention = RingAttention(block.attention, ring)
