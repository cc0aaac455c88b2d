"""Losses that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
import torch.distributed as dist

from course_lib.scratch import wire
from course_lib.scratch.tensor.region import TensorParallel

_NAME = "vocab_parallel_cross_entropy"


def _loss(
    top="global",
    own_labels=True,
    offset=True,
    total=True,
    label=True,
    gathers=False,
    through=None,
    sign=1,
    mean=False,
    detached=True,
    fault="",
):
    """A loss in which one thing can go wrong."""

    def made(logits, labels, region):
        if gathers:
            whole = wire.all_gather(logits.detach().movedim(-1, 0), region.group).movedim(0, -1)
            return whole.logsumexp(-1) - whole.gather(-1, labels[..., None]).squeeze(-1)
        add = through or (lambda x, region: region.sum(x))
        if fault == "changes labels":
            labels -= labels.new_full((), region.rank * logits.shape[-1])
            labels += 1
            labels -= 1
        if fault == "changes logits":
            logits.data.clamp_(min=-1e4)
        highest = logits.detach().amax(-1) if detached else logits.amax(-1)
        if top == "global":
            group = None if fault == "the world's maximum" else region.group
            dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
        if fault == "a barrier of data":
            wire.all_reduce(highest, region.group)
        if top == "none":
            highest = torch.zeros_like(highest)
        shifted = logits - highest[..., None]
        words = logits.shape[-1]
        rank = dist.get_rank() if fault == "the world's rank" else region.rank
        local = labels - rank * words * offset
        if fault == "changes labels":
            local = labels
        own = (local >= 0) & (local < words)
        score = shifted.gather(-1, local.clamp(0, words - 1)[..., None]).squeeze(-1)
        if own_labels:
            score = score.where(own, 0)
        exponentials = shifted.exp().sum(-1)
        exponentials = add(exponentials, region) if total else exponentials
        score = add(score, region) if label else score
        losses = sign * (exponentials.log() - score)
        if fault == "padding is no number":
            losses = losses + 0 * shifted.exp().log().sum(-1)
        return losses.mean() if mean else losses

    made.__name__ = made.__qualname__ = _NAME
    return made


def _summed_both_ways(x, region):
    return region.leave(region.enter(x))


def _not_through_g(x, region):
    """torch's in-place sum has no gradient of its own."""
    total = x.detach().clone()
    dist.all_reduce(total, group=region.group)
    return total


def _rank_0_stops(logits, labels, region):
    """Where no label is this rank's it has nothing to add, and does not call the sum."""
    words = logits.shape[-1]
    own = labels // words == region.rank
    top = logits.detach().amax(-1)
    dist.all_reduce(top, dist.ReduceOp.MAX, group=region.group)
    total = region.sum((logits - top[..., None]).exp().sum(-1)).log()
    return region.sum(total) if bool(own.all()) or region.rank else total


_rank_0_stops.__name__ = _NAME


def _logsumexp(logits, labels, region):
    """Right in another form: each rank's own logsumexp first, and a one-hot product."""
    words = logits.shape[-1]
    top = logits.detach().amax(-1)
    dist.all_reduce(top, dist.ReduceOp.MAX, group=region.group)
    shifted = (logits - top[..., None]).clamp(min=-1e4)
    places = torch.arange(words) + region.rank * words
    score = (shifted * (places == labels[..., None])).sum(-1)
    return region.sum(shifted.exp().sum(-1)).log() - region.sum(score)


_logsumexp.__name__ = _NAME


def _stacked(logits, labels, region):
    """Right with two calls: both sums travel together."""
    words = logits.shape[-1]
    top = logits.detach().amax(-1)
    dist.all_reduce(top, dist.ReduceOp.MAX, group=region.group)
    shifted = logits - top[..., None]
    local = labels - region.rank * words
    own = (local >= 0) & (local < words)
    score = shifted.gather(-1, (local * own)[..., None]).squeeze(-1).where(own, 0)
    total, right = region.sum(torch.stack([shifted.exp().sum(-1), score]))
    return total.log() - right


_stacked.__name__ = _NAME


def _left(x, region):
    """g by the way out of a pair, which is another one under sequence parallelism."""
    return region.leave(x)


def _among_all(x, region):
    return TensorParallel().sum(x)


_FIRST, _SECOND, _THIRD = (f"step {n} of 3.*" for n in (1, 2, 3))
RIGHT = [("one-hot", [_logsumexp]), ("both sums in one call", [_stacked])]
WRONG = [
    ("no maximum", [_loss(top="none")], _SECOND + "scores up to .*not finite"),
    ("a maximum of its own", [_loss(top="own")], _FIRST + "different numbers taken off"),
    (
        "labels of other ranks count",
        [_loss(own_labels=False)],
        _FIRST + "score of a word that is not the label",
    ),
    ("label taken from rank 0", [_loss(offset=False)], _FIRST + "taken for places on this rank"),
    ("its own words only", [_loss(total=False)], _FIRST + "this rank's words alone"),
    ("the label's score not summed", [_loss(label=False)], _FIRST + "only one rank knows"),
    ("the other sign", [_loss(sign=-1)], _FIRST + "of the other sign"),
    ("one number", [_loss(mean=True)], _FIRST + r"has shape \(\)"),
    ("all scores gathered", [_loss(gathers=True)], _THIRD + "makes more all-gather calls"),
    (
        "summed again on the way back",
        [_loss(through=_summed_both_ways)],
        _THIRD + "makes more all-reduce calls.*none on the way back",
    ),
    ("not through g", [_loss(through=_not_through_g)], _THIRD + "nothing leads back"),
    ("the world's maximum", [_loss(fault="the world's maximum")], _THIRD + "is among 3 ranks"),
    ("sums of the world", [_loss(through=_among_all)], _THIRD + "is among 3 ranks"),
    (
        "the world's rank",
        [_loss(fault="the world's rank")],
        _THIRD + r"in the group of ranks \[0, 2\]: the loss of each token",
    ),
    ("out of a pair", [_loss(through=_left)], _THIRD + "(the loss|more reduce-scatter|raised)"),
    ("once more", [_loss(fault="a barrier of data")], _THIRD + "more all-reduce calls"),
    ("changes labels", [_loss(fault="changes labels")], _FIRST + "it changes the labels"),
    ("changes logits", [_loss(fault="changes logits")], _SECOND + "it changes the logits"),
    (
        "a gradient that is no number",
        [_loss(fault="padding is no number")],
        "step . of 3.*(not finite|the gradient)",
    ),
    (
        "rank 0 does not call",
        [_rank_0_stops],
        _FIRST + "(nothing moves|lost its conn).*of your code",
    ),
]
