"""Attention to one block of keys at a time, forward and backward.

To be merged, two blocks need only the log-sum-exp of each other's scores.
q, k, v are (batch, heads, tokens, width); `same` says that queries and keys
are the same tokens: a query then sees the keys up to its own. A block of
earlier keys is seen whole. Milakov and Gimelshein 2018, arXiv:1805.02867; Dao
et al. 2022, arXiv:2205.14135, sections 3.1 and B.4.
"""

from math import inf

import torch
from torch import Tensor

from course_lib.scratch.context.slices import SequenceRing


def block_forward(
    q: Tensor, k: Tensor, v: Tensor, same: bool
) -> tuple[Tensor, Tensor]:
    """Result of the block, and log-sum-exp (batch, heads, queries, 1)."""
    scores = _scores(q, k, same)
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp() @ v, lse


def merge(out: Tensor, lse: Tensor, block: tuple[Tensor, Tensor]) -> None:
    """Add a block to `out` in place; a block weighs exp(its lse)."""
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
