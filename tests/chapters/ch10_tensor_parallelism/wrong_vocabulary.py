"""Losses that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
import torch.distributed as dist

from course_lib.scratch.vocabulary import vocab_parallel_cross_entropy
from tests.checking.builds.patches import versions


def _logsumexp(logits, labels, region):
    """Right in another form: each rank's own logsumexp first, and a one-hot product."""
    words = logits.shape[-1]
    top = logits.detach().amax(-1)
    dist.all_reduce(top, dist.ReduceOp.MAX, group=region.group)
    shifted = (logits - top[..., None]).clamp(min=-1e4)
    places = torch.arange(words) + region.rank * words
    score = (shifted * (places == labels[..., None])).sum(-1)
    return region.sum(shifted.exp().sum(-1)).log() - region.sum(score)


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


_logsumexp.__name__ = _stacked.__name__ = vocab_parallel_cross_entropy.__name__
RIGHT = [("one-hot", [_logsumexp]), ("both sums in one call", [_stacked])]
_PATCHES = r"""
    no maximum
    - dist.all_reduce(top, dist.ReduceOp.MAX, group=region.group)
    + top = torch.zeros_like(top)
    ? 2 scores up to .*not finite
    a maximum of its own
    - dist.all_reduce(top, dist.ReduceOp.MAX, group=region.group)
    ? 1 different numbers taken off
    labels of other ranks count
    - (local * own)
    + local.clamp(0, words - 1)
    - label.where(own, 0)
    + label
    ? 1 score of a word that is not the label
    label taken from rank 0
    - labels - region.rank * words
    + labels
    ? 1 taken for places on this rank
    its own words only
    - region.sum(shifted.exp().sum(-1))
    + shifted.exp().sum(-1)
    ? 1 this rank's words alone
    the label's score not summed
    - region.sum(label.where(own, 0))
    + label.where(own, 0)
    ? 1 only one rank knows
    the other sign
    - total.log() - region.sum(label.where(own, 0))
    + region.sum(label.where(own, 0)) - total.log()
    ? 1 of the other sign
    one number
    - total.log() - region.sum(label.where(own, 0))
    + (total.log() - region.sum(label.where(own, 0))).mean()
    ? 1 has shape \(\)
    all scores gathered
    - top = logits.detach().amax(-1)
    + from course_lib.scratch import wire
    + whole = wire.all_gather(logits.detach().movedim(-1, 0), region.group).movedim(0, -1)
    + return whole.logsumexp(-1) - whole.gather(-1, labels[..., None]).squeeze(-1)
    ? 3 makes more all-gather calls
    summed again on the way back
    - region.sum(shifted.exp().sum(-1))
    + region.leave(region.enter(shifted.exp().sum(-1)))
    ? 3 makes more all-reduce calls.*none on the way back
    not through g
    - total = region.sum(shifted.exp().sum(-1))
    + dist.all_reduce(total := shifted.exp().sum(-1).detach(), group=region.group)
    - return total.log() - region.sum(label.where(own, 0))
    + dist.all_reduce(label := label.where(own, 0).detach(), group=region.group)
    + return total.log() - label
    ? 3 nothing leads back
    the world's maximum
    - dist.ReduceOp.MAX, group=region.group
    + dist.ReduceOp.MAX
    ? 3 is among 3 ranks
    sums of the world
    - region.sum(shifted.exp().sum(-1))
    + TensorParallel().sum(shifted.exp().sum(-1))
    - region.sum(label.where(own, 0))
    + TensorParallel().sum(label.where(own, 0))
    ? 3 is among 3 ranks
    the world's rank
    - region.rank * words
    + dist.get_rank() * words
    ? 3 in the group of ranks \[0, 2\]: the loss of each token
    out of a pair
    - region.sum(shifted.exp().sum(-1))
    + region.leave(shifted.exp().sum(-1))
    - region.sum(label.where(own, 0))
    + region.leave(label.where(own, 0))
    ? 3 (the loss|more reduce-scatter|raised)
    once more
    - shifted = logits - top[..., None]
    + dist.all_reduce(top.clone(), group=region.group)
    + shifted = logits - top[..., None]
    ? 3 more all-reduce calls
    changes labels
    - labels - region.rank * words
    + labels.sub_(region.rank * words)
    ? 1 it changes the labels
    changes logits
    - logits.detach().amax(-1)
    + logits.data.clamp_(min=-1e4).amax(-1)
    ? 2 it changes the logits
    a gradient that is no number
    - region.sum(label.where(own, 0))
    + region.sum(label.where(own, 0)) + 0 * shifted.exp().log().sum(-1)
    ? step . of 3.*(not finite|the gradient)
    rank 0 does not call
    - total.log() - region.sum(label.where(own, 0))
    + region.sum(total) if bool(own.all()) or region.rank else total
    ? 1 (nothing moves|lost its conn).*of your code
"""
WRONG = versions(vocab_parallel_cross_entropy, lambda wrong: [wrong], _PATCHES)
