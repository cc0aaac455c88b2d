"""Context parallelism: the sequence sharded over ranks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from course_lib.scratch.gpt import GPT, Attention, Block

# Which rank holds which tokens of a sequence, and how slices are passed on.


@dataclass
class Passing:
    """A send to the next rank and a receive from the previous, in flight."""

    sent: Tensor  # must live until it has been sent
    coming: Tensor
    works: list[dist.Work]

    def wait(self) -> Tensor:
        """Wait for both; returns the tensor from the previous rank."""
        for work in self.works:
            work.wait()
        return self.coming


class SequenceRing:
    """The ranks of a group, each holding a slice of the sequence.

    A slice is one chunk of n, or with `zigzag` an early and a late one of 2n:
    rank r has r and 2n-1-r. Tokens attend to all earlier ones, so the last of
    n chunks is the most work, while the pairs are balanced. Llama 3,
    arXiv:2407.21783, section 3.3.2.
    """

    def __init__(self, group: ProcessGroup, zigzag: bool = False) -> None:
        self.group, self.zigzag = group, zigzag
        self.rank, self.ranks = dist.get_rank(group), group.size()

    def chunks(self, rank: int) -> list[int]:
        """Indices of the chunks on `rank`, in sequence order."""
        return [rank, 2 * self.ranks - 1 - rank] if self.zigzag else [rank]

    def places(self, sequence: int) -> Tensor:
        """Positions of this rank's tokens; ValueError for uneven chunks."""
        count = self.ranks * len(self.chunks(0))
        if sequence % count:
            raise ValueError(
                f"sequence {sequence} is not divisible into {count} chunks: "
                f"take a multiple of {count}"
            )
        all_chunks = torch.arange(sequence).chunk(count)
        return torch.cat(
            [all_chunks[chunk] for chunk in self.chunks(self.rank)]
        )

    def cut(self, tensor: Tensor, number: int) -> Tensor:
        """A view of chunk `number` of a slice; tokens are on axis -2."""
        return tensor.chunk(len(self.chunks(self.rank)), dim=-2)[number]

    def pairs(self, owner: int) -> Iterator[tuple[int, int, bool]]:
        """(own chunk, chunk of `owner` it attends to, whether they are equal).

        Chunks are numbered within their slice: 0, or 0 and 1.
        """
        own_chunks, owner_chunks = self.chunks(self.rank), self.chunks(owner)
        for (i, queries), (j, keys) in product(
            enumerate(own_chunks), enumerate(owner_chunks)
        ):
            if keys <= queries:
                yield i, j, keys == queries

    def visits(self, tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (owner, tensor) for every rank's `tensor`, own first.

        n-1 hops; the next one arrives while the caller works on this one.
        """
        for step in range(self.ranks):
            if step < self.ranks - 1:
                passing = self.start(tensor)
            yield (self.rank - step) % self.ranks, tensor
            if step < self.ranks - 1:
                tensor = passing.wait()

    def start(self, tensor: Tensor) -> Passing:
        """Start one hop: send to the next rank, receive from the previous."""
        coming = torch.empty_like(tensor)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, self._at(1), self.group),
                dist.P2POp(dist.irecv, coming, self._at(-1), self.group),
            ]
        )
        return Passing(tensor, coming, works)

    def _at(self, step: int) -> int:
        neighbour = (self.rank + step) % self.ranks
        return dist.get_global_rank(self.group, neighbour)


# Attention to one block of keys at a time, forward and backward.
#
# Merging two blocks needs only the log-sum-exp of each one's scores. q, k, v
# are (batch, heads, tokens, width). `same`: queries and keys are the same
# tokens, so the causal mask applies; a block of earlier keys is unmasked.
# Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
# arXiv:2205.14135, sections 3.1 and B.4.


def block_forward(
    q: Tensor, k: Tensor, v: Tensor, same: bool
) -> tuple[Tensor, Tensor]:
    """The block's output, and log-sum-exp (batch, heads, queries, 1)."""
    scores = _scores(q, k, same)
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp() @ v, lse


def merge(out: Tensor, lse: Tensor, block: tuple[Tensor, Tensor]) -> None:
    """Merge a block into `out` in place, weighted by exp(its lse)."""
    block_out, block_lse = block
    both = torch.logaddexp(lse, block_lse)
    out.mul_((lse - both).exp()).add_(block_out * (block_lse - both).exp())
    lse.copy_(both)


def ring_forward(
    q: Tensor, kv: Tensor, ring: SequenceRing
) -> tuple[Tensor, Tensor]:
    """Attention of this rank's queries to the keys and values of all ranks.

    kv is (2, batch, heads, tokens of a rank, width); returns the result and
    the log-sum-exp of each query's scores, (batch, heads, tokens, 1).
    """
    out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -inf)
    for owner, visitor in ring.visits(kv):
        for i, j, same in ring.pairs(owner):
            k, v = ring.cut(visitor, j)
            block = block_forward(ring.cut(q, i), k, v, same)
            merge(ring.cut(out, i), ring.cut(lse, i), block)
    return out, lse


def block_backward(
    q: Tensor,
    kv: Tensor,
    lse: Tensor,
    d_out: Tensor,
    delta: Tensor,
    same: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of q and of kv; the attention weights are recomputed.

    `lse` is over all blocks; delta is Σ d_out · out for each query, both
    (batch, heads, queries, 1). kv is (2, batch, heads, keys, width).
    """
    k, v = kv
    weights = (_scores(q, k, same) - lse).exp()
    d_v = weights.transpose(-1, -2) @ d_out
    d_scores = weights * (d_out @ v.transpose(-1, -2) - delta)
    d_scores = d_scores * q.shape[-1] ** -0.5
    return d_scores @ k, torch.stack([d_scores.transpose(-1, -2) @ q, d_v])


def _scores(q: Tensor, k: Tensor, same: bool) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if not same:
        return scores
    later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -inf)


# Ring attention: keys and values circulate over all ranks, queries stay.


# (q, kv, ring) -> (output, log-sum-exp), as `ring_forward`.
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
        """A second ring; gradients of kv follow their kv one hop behind.

        They start one rank after the owner and end at the owner: n-1 hops.
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
    """Ring attention over sequence slices, with the weights of `attention`."""

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
