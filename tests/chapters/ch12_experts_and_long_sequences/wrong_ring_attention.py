"""Rings of attention that the check must refuse, as patches of right ones."""

import torch

from course_lib.scratch.context import block_forward, merge
from tests.checking.builds.patches import versions


def _sdpa(q, k, v, same):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if same:
        scores += torch.full(scores.shape[-2:], -torch.inf).triu(1)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=same)
    return [out, scores.logsumexp(-1, keepdim=True)]


def _sigmoids(out, lse, block):
    """Right in another form: weights by the difference of both."""
    new, new_lse = block
    out.lerp_(new, (new_lse - lse).sigmoid())
    torch.logaddexp(lse, new_lse, out=lse)


def ring_forward(q, kv, ring):
    """Right in another form: each hop by hand."""
    out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf)
    for step in range(ring.ranks):
        hop = ring.start(kv) if step < ring.ranks - 1 else None
        now, owner = kv, (ring.rank - step) % ring.ranks
        for i, j, same in ring.pairs(owner):
            block = block_forward(ring.cut(q, i), *ring.cut(now, j), same)
            merge(ring.cut(out, i), ring.cut(lse, i), block)
        if hop:
            kv = hop.wait()
    return out, lse


_sdpa.__name__, _sigmoids.__name__ = "block_forward", "merge"
RIGHT = [("torch's attention, sigmoids, hops by hand", [_sdpa, _sigmoids, ring_forward])]
_BLOCKS = """
    not scaled
    - _scores(q, k, same)
    + _scores(q * q.shape[-1] ** 0.5, k, same)
    ? 1 attention with scores that are not scaled
    no mask
    + _scores(q, k, False)
    ? 1 own keys: the result of block_forward is attention without a mask
    always masked
    + _scores(q, k, True)
    ? 1 attention with a mask, and all of these keys are earlier
    not its own key
    + _scores(q, k, same)
    + if same:
    +     scores.diagonal(dim1=-2, dim2=-1).fill_(-inf)
    ? 1 not finite
    no maximum
    - (scores - lse).exp() @ v
    + scores.exp() @ v / scores.exp().sum(-1, keepdim=True)
    ? 1 scores of some 1,000: the result .* not finite
    the sum itself
    - @ v, lse
    + @ v, lse.exp()
    ? 1 the sum, not its logarithm
"""
_MERGES = """
    not rescaled
    - out.mul_((lse - both).exp()).add_(block_out * (block_lse - both).exp())
    + out.add_(block_out)
    ? 2 after 2 blocks: `out` is the plain sum of both
    the mean
    + out.add_(block_out).div_(2)
    ? 2 after 1 block: `out` is their plain mean
    exp of scores
    + one, other = lse.exp(), block_lse.exp()
    + out.copy_((out * one + block_out * other) / (one + other))
    ? 2 scores of some 1,000.*not finite
    not in place
    + out = out * (lse - both).exp() + block_out * (block_lse - both).exp()
    ? 2 what it was before: change it in place
    infinity from itself
    - both = torch.logaddexp(lse, block_lse)
    + both = block_lse + torch.nn.functional.softplus(lse - block_lse)
    ? 2 a block with an lse of -inf adds nothing: `out` after merge has numbers that are not finite
    half of a block
    + if bool(block_lse.isinf().all()):
    +     return
    + both = block_lse + torch.nn.functional.softplus(lse - block_lse)
    ? 2 half of the queries see nothing of a block: `out` after merge has numbers that are not
    lse forgotten
    - lse.copy_(both)
    ? 2 `lse` is what it was before
"""
_RINGS = """
    one hop less
    - range(ring.ranks)
    + range(ring.ranks - 1)
    ? 3 attention without the last visitor
    only as many as needed
    + range(ring.rank + 1)
    - step < ring.ranks - 1
    + step < ring.rank
    ? 3 rank 0(, which had| has) returned
    the ring of all ranks
    + range(dist.get_world_size())
    - ring.start(kv) if step < ring.ranks - 1
    + type(ring)(dist.group.WORLD).start(kv) if step < dist.get_world_size() - 1
    ? 3 (its send-recv is among 3|another number of bytes)
    one hop more
    - step < ring.ranks - 1
    + True
    ? 3 rank 0.* makes more send-recv calls
    the other way
    - ring.rank - step
    + ring.rank + step
    ? 3 rank 1 of 3, .*a visitor is taken for another
    always its own
    + ring.rank
    ? 3 each slice masked as if it was its own
    masked by place
    - ring.cut(now, j), same
    + ring.cut(now, j), True
    ? 3 each block masked as if its tokens were the same
    never masked
    + ring.cut(now, j), False
    ? 3 later tokens of the same chunk
    starts after the block
    - hop = ring.start(kv) if
    + hop =
    - else None
    + and ring
    - hop.wait()
    + hop.start(kv).wait()
    ? 3 before hop 1 starts, blocks are computed while nothing
    waits before the block
    - now, owner = kv,
    + now, kv, hop, owner = kv, hop.wait() if hop else kv, None,
    ? 3 hop 1 is waited for before any block was computed
    waits after a block
    - merge(ring.cut(out, i), ring.cut(lse, i), block)
    + merge(ring.cut(out, i), ring.cut(lse, i), block)
    + kv, hop = hop.wait() if hop else kv, None
    ? 3 before hop 2 starts, blocks are computed while nothing
    the result alone
    - return out, lse
    + return out
    ? 3 ring_forward wants a pair
    no log-sum-exp
    + return out, torch.zeros_like(lse)
    ? 3 the log-sum-exp
    views q
    - for step
    + q = q.view(-1, *q.shape[-2:]).view(q.shape)
    + for step
    ? 3 raised RuntimeError: view size.*of your code
    scales q
    + q *= 1 + 1e-6
    + for step
    ? 3 ring_forward changes q
"""
WRONG = [
    *versions(block_forward, lambda block: [block, merge, ring_forward], _BLOCKS),
    *versions(merge, lambda merged: [block_forward, merged, ring_forward], _MERGES),
    *versions(ring_forward, lambda ring: [block_forward, merge, ring], _RINGS),
]
