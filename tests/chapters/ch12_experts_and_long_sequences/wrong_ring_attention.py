"""Rings of attention that the check must refuse, and one more that is right."""

import torch
import torch.distributed as dist


def _parts(fault=""):
    """The three functions, in which one thing goes wrong, or nothing."""

    def block_forward(q, k, v, same):
        scores = q @ k.transpose(-1, -2)
        if fault != "not scaled":
            scores = scores / q.shape[-1] ** 0.5
        if (same and fault != "no mask") or fault == "always masked":
            first = 0 if fault == "not its own key" else 1
            hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(first)
            scores = scores.masked_fill(hidden, -torch.inf)
        top = scores.amax(-1, keepdim=True)
        if fault == "no maximum":
            top = torch.zeros_like(top)
        weights = (scores - top).exp()
        total = weights.sum(-1, keepdim=True)
        if fault == "the sum itself":
            return weights @ v / total, total * top.exp()
        return weights @ v / total, top + total.log()

    def merge(out, lse, block):
        new, new_lse = block
        if fault == "not rescaled":
            out += new
            lse.copy_(torch.logaddexp(lse, new_lse))
            return
        if fault == "the mean":
            out.add_(new).div_(2)
            lse.copy_(torch.logaddexp(lse, new_lse))
            return
        if fault == "exp of scores":
            one, other = lse.exp(), new_lse.exp()
            out.copy_((out * one + new * other) / (one + other))
            lse.copy_((one + other).log())
            return
        top = torch.maximum(lse, new_lse)
        one, other = (lse - top).exp(), (new_lse - top).exp()
        result = (out * one + new * other) / (one + other)
        if fault == "not in place":
            out = result
            return
        out.copy_(result)
        if fault != "lse forgotten":
            lse.copy_(top + (one + other).log())

    def ring_forward(q, kv, ring):
        out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf)
        rounds = dist.get_world_size() if fault == "the world's size" else ring.ranks
        if fault == "views q":
            q = q.view(-1, *q.shape[-2:]).view(q.shape)
        if fault == "scales q":
            q *= 1
            q /= 1.5
            q *= 1.5 + 1e-6
        if fault == "all hops first":
            visitors = [kv]
            for _ in range(rounds - 1):
                visitors.append(ring.start(visitors[-1]).wait())
        if fault == "hops of its own":
            return _by_hand(q, kv, ring, block_forward, merge)
        if fault == "one hop less":
            rounds -= 1
        if fault == "only as many as needed":
            rounds = ring.rank + 1
        for step in range(rounds):
            moves = step < rounds - 1 or fault == "one hop more"
            late = fault in ("starts after the block", "all hops first")
            hop = ring.start(kv) if moves and not late else None
            now = kv
            if fault == "waits before the block" and hop:
                kv, hop = hop.wait(), None
            if fault == "all hops first":
                now = visitors[step]
            owner = (ring.rank + (step if fault == "the other way" else -step)) % ring.ranks
            if fault == "always its own":
                owner = ring.rank
            for i, j, same in ring.pairs(owner):
                k, v = ring.cut(now, j)
                if fault == "masked by place":
                    same = True
                if fault == "never masked":
                    same = False
                block = block_forward(ring.cut(q, i), k, v, same)
                merge(ring.cut(out, i), ring.cut(lse, i), block)
                if fault == "waits after a block" and hop:
                    kv, hop = hop.wait(), None
            if fault == "starts after the block" and moves:
                hop = ring.start(kv)
            if hop:
                kv = hop.wait()
            if fault == "the tensor that was sent" and hop:
                kv = hop.sent
            if fault == "changes kv" and step == 0:
                now.zero_()
        if fault == "no log-sum-exp":
            return out, torch.zeros_like(lse)
        return (out, lse) if fault != "the result alone" else out

    return [block_forward, merge, ring_forward]


def _by_hand(q, kv, ring, block_forward, merge):
    """Hops to the next rank of all ranks, whatever the ring."""
    out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(ranks):
        if step:
            coming = torch.empty_like(kv)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, kv, (rank + 1) % ranks),
                    dist.P2POp(dist.irecv, coming, (rank - 1) % ranks),
                ]
            )
            for work in works:
                work.wait()
            kv = coming
        for i, j, same in ring.pairs((rank - step) % ranks):
            block = block_forward(ring.cut(q, i), *ring.cut(kv, j), same)
            merge(ring.cut(out, i), ring.cut(lse, i), block)
    return out, lse


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


_sdpa.__name__, _sigmoids.__name__ = "block_forward", "merge"


def _by_visits():
    def ring_forward(q, kv, ring):
        out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf)
        for owner, (k, v) in ring.visits(kv):
            for i, j, same in ring.pairs(owner):
                block = _sdpa(ring.cut(q, i), ring.cut(k, j), ring.cut(v, j), same)
                _sigmoids(ring.cut(out, i), ring.cut(lse, i), block)
        return out, lse

    return [_sdpa, _sigmoids, ring_forward]


RIGHT = [("maxima, and hops by hand", _parts()), ("torch's attention, sigmoids", _by_visits())]
# At the end of a copy of this file, as if it was kept.
AS_MINE = "\nblock_forward, merge, ring_forward = _parts()\n"

_ONE, _TWO, _THREE = (f"step {number} of 3.*" for number in (1, 2, 3))
WRONG = [
    (thought, _parts(thought), words)
    for thought, words in [
        ("not scaled", _ONE + "attention with scores that are not scaled"),
        ("no mask", _ONE + "own keys: the result of block_forward is attention without a mask"),
        ("always masked", _ONE + "attention with a mask, and all of these keys are earlier"),
        ("not its own key", _ONE + "not finite"),
        ("no maximum", _ONE + "scores of some 1,000: the result .* not finite"),
        ("the sum itself", _ONE + "the sum, not its logarithm"),
        ("not rescaled", _TWO + "after 2 blocks: `out` is the plain sum of both"),
        ("the mean", _TWO + "after 1 block: `out` is their plain mean"),
        ("exp of scores", _TWO + "scores of some 1,000.*not finite"),
        ("not in place", _TWO + "what it was before: change it in place"),
        ("lse forgotten", _TWO + "`lse` is what it was before"),
        ("one hop less", _THREE + "attention without the last visitor"),
        ("only as many as needed", _THREE + "rank 0(, which had| has) returned"),
        ("one hop more", _THREE + "rank 0.* makes more send-recv calls"),
        ("the other way", _THREE + "rank 1 of 3, .*a visitor is taken for another"),
        ("always its own", _THREE + "each slice masked as if it was its own"),
        ("masked by place", _THREE + "each block masked as if its tokens were the same"),
        ("never masked", _THREE + "later tokens of the same chunk"),
        ("the result alone", _THREE + "ring_forward wants a pair"),
        (
            "starts after the block",
            _THREE + "before hop 1 starts, blocks are computed while nothing",
        ),
        ("waits before the block", _THREE + "hop 1 is waited for before any block was computed"),
        ("all hops first", _THREE + "hop 1 is waited for before any block was computed"),
        ("the world's size", _THREE + "(its send-recv|raised|nothing moves|lost its)"),
        ("hops of its own", _THREE + "(its send-recv is among 3|another number of bytes)"),
        ("views q", _THREE + "raised RuntimeError: view size.*of your code"),
        ("the tensor that was sent", _THREE + "the result"),
        ("changes kv", _THREE + "(ring_forward changes kv|the result)"),
        ("no log-sum-exp", _THREE + "the log-sum-exp"),
        ("waits after a block", _THREE + "before hop 2 starts, blocks are computed while nothing"),
        ("scales q", _THREE + "ring_forward changes q"),
    ]
]
