"""Build 10.13: the loss with a vocabulary that is cut over the ranks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare
from course_lib.checking.builds.lazily import dist, later, nn, torch
from course_lib.checking.builds.raced import both_passes, device_mesh
from course_lib.checking.builds.rows import Must, Never, Rows, Sends, unchanged
from course_lib.checking.races import Race

_watched = later("course_lib.checking.builds.on_rank.watched")
_tensor, _wire = later("course_lib.scratch.tensor"), later("course_lib.measure.wire")

_NAME = "vocab_parallel_cross_entropy"
_BATCH, _TOKENS = 2, 5


@dataclass(frozen=True)
class _Cut(Case):
    """A vocabulary size and a scale of the scores; in groups, sequence parallelism is on."""

    vocab: int
    size: float = 1.0

    def words(self, line: Sequence[int]) -> str:
        largest = round(self.given()[0].max().item())
        large = f", scores up to {largest}" if self.size > 1 else ""
        return f"{self.vocab} words{large}" + f", in the group of ranks {line}" * self.in_group

    def given(self) -> "tuple[torch.Tensor, torch.Tensor]":
        """Scores (batch, sequence, vocab) and labels; these contain the first and the last word."""
        generator = torch.Generator().manual_seed(self.vocab)
        labels = torch.randint(0, self.vocab, (_BATCH, _TOKENS), generator=generator)
        labels[0, 0], labels[-1, -1] = 0, self.vocab - 1
        scores = torch.randn(_BATCH, _TOKENS, self.vocab, generator=generator)
        return self.size * scores, labels

    def one_process(self) -> Any:
        """Losses (batch, sequence) and the gradient of the scores, in one process."""
        logits, labels = self.given()
        logits.requires_grad_()
        losses: Any = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none"
        ).view(_BATCH, _TOKENS)
        losses.backward(_weights())
        return losses.detach(), logits.grad


def _weights() -> "torch.Tensor":
    """The upstream gradient of each token's loss: its weight in a weighted mean."""
    return torch.linspace(0.1, 1.0, _BATCH * _TOKENS).view(_BATCH, _TOKENS)


def _pieces(whole: "torch.Tensor", ranks: int, filler: float) -> "tuple[torch.Tensor, ...]":
    """Cut the vocabulary into a piece for each rank, padded with `filler` to equal sizes."""
    missing = -whole.shape[-1] % ranks
    return nn.functional.pad(whole, (0, missing), value=filler).chunk(ranks, -1)


def _run_loss(parts: SimpleNamespace, case: _Cut, group: Any) -> Any:
    region = _tensor.SequenceParallel(group) if group else _tensor.TensorParallel()
    logits, labels = case.given()
    own = _pieces(logits, region.ranks, -math.inf)[region.rank].clone()
    same = _watched.kept({"the logits": own, "the labels": labels})
    own.requires_grad_()
    with _wire.log_wire() as log:
        losses = getattr(parts, _NAME)(own, labels, region)
        if case.backward and getattr(losses, "requires_grad", False):
            (losses * _weights()).sum().backward()
    losses = losses.detach() if isinstance(losses, torch.Tensor) else losses
    return losses, own.grad, log, same()


def _expect_losses(outcome: Any, at: Place) -> Rows:
    losses, gradient, log, same = outcome
    right, whole = at.case.one_process()
    if at.case.backward:
        most = {"all-reduce": (3, 3 * right.nbytes)}
        why = "at most a maximum and two sums, each of one number a token, and none on the way back"
        yield Sends(log, most, why, at_most=True, among=at.ranks)
    yield Must("the loss of each token", losses, right, _mistakes(at.case, at.ranks, at.rank))
    if at.case.backward:
        lost = "nothing leads back to the scores: does autograd know each sum?"
        yield Never(gradient is None, lost)
        own = _pieces(whole, at.ranks, 0.0)[at.rank]
        sums = {float(at.ranks): "every rank has the gradient of a sum already, whole"}
        yield Must("the gradient of its scores", gradient, own, factors=sums)
    yield from unchanged(same, "it")


def _mistakes(case: _Cut, ranks: int, rank: int) -> "dict[str, torch.Tensor]":
    """Losses that a rank computes after a likely mistake, by their explanation."""
    logits, labels = case.given()
    pieces, top = torch.stack(_pieces(logits, ranks, -math.inf)), logits.amax(-1)
    words, numbers = pieces.shape[-1], torch.arange(ranks).view(-1, 1, 1)
    local = labels - words * numbers  # (ranks, batch, sequence), like the tensors below
    own = (local >= 0) & (local < words)
    first, nearest = (
        pieces.gather(-1, index[..., None]).squeeze(-1) - top
        for index in (local * own, local.clamp(0, words - 1))
    )
    right, sums = first.where(own, 0), (pieces - top[..., None]).exp().sum(-1)
    tops = pieces.amax(-1)
    own_shifts = (pieces - tops[..., None]).exp().sum(-1).sum(0).log()
    unshifted = pieces.gather(-1, labels.clamp(max=words - 1).expand_as(own)[..., None])
    everywhere = (unshifted.squeeze(-1) - top).where(labels < words, 0).sum(0)
    total = sums.sum(0).log()
    return {
        "that of a model with this rank's words alone": sums[rank].log() - right.sum(0),
        "that of a label's score that only one rank knows": total - right[rank],
        "made with a label's score from every rank, also from those without the label": total
        - first.sum(0),
        "made with the score of a word that is not the label, from ranks without it": total
        - nearest.sum(0),
        "made with labels that are taken for places on this rank": total - everywhere,
        "made with a sum whose parts had different numbers taken off": own_shifts
        - (right + (top - tops).where(own, 0)).sum(0),
        "of the other sign": right.sum(0) - total,
    }


# Scores that overflow, padding on one rank, and a rank with nothing but padding.
_HARD = (_Cut(7, 200.0, ranks=3), _Cut(4, 200.0, ranks=3))
_BOTH = (
    _Cut(7, ranks=3, backward=True),
    _Cut(4, 200.0, ranks=3, backward=True),
    *(_Cut(vocab, ranks=3, in_group=True, backward=True) for vocab in (7, 2)),
)


def _vocabulary(parts: SimpleNamespace) -> Callable[[], object]:
    region = _tensor.TensorParallel()
    logits, labels = torch.ones(1, 256, 4096, requires_grad=True), torch.arange(256).view(1, 256)
    return lambda: both_passes(parts.vocab_parallel_cross_entropy, logits, labels, region)


def _loss_parallel() -> Callable[[], object]:
    tensors, mesh = later("torch.distributed.tensor"), device_mesh(dist.get_world_size())
    local, labels = torch.ones(256, 4096, requires_grad=True), torch.arange(256)

    def once() -> None:
        with later("torch.distributed.tensor.parallel").loss_parallel():
            scores = tensors.DTensor.from_local(local, mesh, [tensors.Shard(1)])
            both_passes(nn.functional.cross_entropy, scores, labels)

    return once


VOCABULARY = build(
    "vocabulary",
    steps=(
        compare("the losses", (_NAME,), _run_loss, _expect_losses, (_Cut(6),)),
        compare("large scores and padding", (_NAME,), _run_loss, _expect_losses, _HARD),
        compare("the gradients", (_NAME,), _run_loss, _expect_losses, _BOTH),
    ),
    race=Race(
        "the loss of 256 tokens, 4096 words a rank, both passes", _vocabulary, _loss_parallel
    ),
)
