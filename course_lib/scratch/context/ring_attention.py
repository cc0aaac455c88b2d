"""Ring attention: keys and values visit every rank, queries stay."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from course_lib.scratch.context.block_attention import (
    block_backward,
    ring_forward,
)
from course_lib.scratch.context.slices import SequenceRing
from course_lib.scratch.gpt import GPT, Attention, Block

# q, kv and the ring -> the result, and its log-sum-exp: `ring_forward`.
Forward = Callable[[Tensor, Tensor, SequenceRing], tuple[Tensor, Tensor]]


class RingFunction(torch.autograd.Function):
    """Causal attention of slices (batch, heads, tokens of a rank, width).

    Liu et al. 2023, arXiv:2310.01889, section 3.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        ring: SequenceRing,
        forward: Forward,
    ) -> Tensor:
        kv = torch.stack([k, v])  # (2, batch, heads, tokens of a rank, width)
        out, lse = forward(q, kv, ring)
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
        return d_q, *d_own, None, None


class RingAttention(Attention):
    """`attention` with the same weights, for slices of the sequence."""

    def __init__(
        self,
        attention: Attention,
        ring: SequenceRing,
        forward: Forward = ring_forward,
    ) -> None:
        nn.Module.__init__(self)
        self.ring, self.ring_forward = ring, forward
        self.heads = attention.heads
        self.qkv, self.out = attention.qkv, attention.out

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return RingFunction.apply(q, k, v, self.ring, self.ring_forward)


def spread_sequence(
    model: GPT, ring: SequenceRing, forward: Forward = ring_forward
) -> None:
    """Give every layer ring attention; call the model with `ring.places`."""
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention = RingAttention(block.attention, ring, forward)
