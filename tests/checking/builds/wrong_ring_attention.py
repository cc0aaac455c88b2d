"""Rings of attention that the check must refuse, and one more that is right."""

import torch


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
        rounds = ring.ranks
        if fault == "one hop less":
            rounds -= 1
        if fault == "only as many as needed":
            rounds = ring.rank + 1
        for step in range(rounds):
            hop = ring.start(kv) if step < rounds - 1 or fault == "one hop more" else None
            owner = (ring.rank + (step if fault == "the other way" else -step)) % ring.ranks
            if fault == "always its own":
                owner = ring.rank
            for i, j, same in ring.pairs(owner):
                k, v = ring.cut(kv, j)
                if fault == "masked by place":
                    same = True
                if fault == "never masked":
                    same = False
                block = block_forward(ring.cut(q, i), k, v, same)
                merge(ring.cut(out, i), ring.cut(lse, i), block)
            if hop:
                kv = hop.wait()
        return (out, lse) if fault != "the result alone" else out

    return [block_forward, merge, ring_forward]


RIGHT = [("maxima, and hops by hand", _parts())]
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
        ("one hop more", _THREE + "rank 0 makes more send-recv calls"),
        ("the other way", _THREE + "rank 1 of 3, .*a visitor is taken for another"),
        ("always its own", _THREE + "each slice masked as if it was its own"),
        ("masked by place", _THREE + "each slice masked as if it was its own"),
        ("never masked", _THREE + "later tokens of the same chunk"),
        ("the result alone", _THREE + "ring_forward wants a pair"),
    ]
]
