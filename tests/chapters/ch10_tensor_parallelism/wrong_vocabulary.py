"""Losses that the check must refuse: (what was thought, answer, words of the refusal)."""

from course_lib.scratch.tensor import vocab_parallel_cross_entropy
from tests.checking.builds.patches import patched, versions

_BOTH = patched(
    vocab_parallel_cross_entropy,
    "region.sum(shifted.exp().sum(-1))",
    "shifted.exp().sum(-1)",
    "return total.log() - region.sum(label.where(own, 0))",
    "total, label = region.sum(torch.stack([total, label.where(own, 0)]))\n"
    "return total.log() - label",
)
_ONE_HOT = patched(
    vocab_parallel_cross_entropy,
    "logits - top[..., None]",
    "(logits - top[..., None]).clamp(min=-1e4)",
    "own = (local >= 0) & (local < words)",
    "own = torch.arange(words) == local[..., None]",
    "shifted.gather(-1, (local * own)[..., None]).squeeze(-1)",
    "shifted",
    "label.where(own, 0)",
    "(label * own).sum(-1)",
)
RIGHT = [("one-hot", [_ONE_HOT]), ("both sums in one call", [_BOTH])]
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
    ranks without the label count
    - label.where(own, 0)
    + label
    ? 1 a label's score from every rank
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
    changes logits
    - logits.detach().amax(-1)
    + logits.data.clamp_(min=-1e4).amax(-1)
    ? 2 it changes the logits
"""
WRONG = versions(vocab_parallel_cross_entropy, lambda wrong: [wrong], _PATCHES)
