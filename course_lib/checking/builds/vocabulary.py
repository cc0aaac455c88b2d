"""Build 10.13: the loss of a vocabulary that is cut over ranks."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import (
    expect_among,
    expect_calls,
    expect_kept,
    expect_tensor,
)
from course_lib.checking.builds.ranks import LINES, each_rank, line_of, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "vocab_parallel_cross_entropy"
_BATCH, _TOKENS = 2, 5


def _given(vocab: int, size: float) -> "tuple[Tensor, Tensor]":
    """Scores (batch, sequence, vocab) and labels: first the first word, last the last one."""
    import torch

    generator = torch.Generator().manual_seed(vocab)
    labels = torch.randint(0, vocab, (_BATCH, _TOKENS), generator=generator)
    labels[0, 0], labels[-1, -1] = 0, vocab - 1
    return size * torch.randn(_BATCH, _TOKENS, vocab, generator=generator), labels


def _weights() -> "Tensor":
    """The gradient of each token's loss, as a mean with weights gives it."""
    import torch

    return torch.linspace(0.1, 1.0, _BATCH * _TOKENS).view(_BATCH, _TOKENS)


@dataclass(frozen=True)
class _Case:
    """A vocabulary, the size of its scores, and among whom it is cut."""

    vocab: int
    size: float = 1.0
    in_lines: bool = False  # in the smaller groups, and under sequence parallelism

    def line(self, rank: int, ranks: int) -> list[int]:
        return line_of(rank) if self.in_lines else list(range(ranks))

    @property
    def name(self) -> str:
        large = f", scores up to {_largest(self.vocab, self.size)}" if self.size > 1 else ""
        return f"{self.vocab} words{large}"


# Scores that overflow, padding on one rank, and a rank that has nothing else.
_HARD = (_Case(7, 200.0), _Case(4, 200.0))
_OTHER = (_Case(7), _Case(4, 200.0), _Case(7, in_lines=True), _Case(2, in_lines=True))


def _losses(parts: SimpleNamespace) -> None:
    _check(parts, _Case(6), ranks=2)


def _hard(parts: SimpleNamespace) -> None:
    _check(parts, *_HARD, ranks=3)


def _gradients(parts: SimpleNamespace) -> None:
    """And the messages of both passes."""
    _check(parts, *_OTHER, ranks=3, backward=True)


def _expect_sent(log: Any, ranks: int, name: str) -> None:
    size = 4 * _BATCH * _TOKENS
    expect_among(log, ranks, name)
    why = "at most a maximum and two sums, each of one number a token, and none on the way back"
    sent = {"all-reduce": (3, 3 * size)} if ranks > 1 else {}
    expect_calls(log, sent, f"{name},", why, at_most=True)


def _check(parts: SimpleNamespace, *cases: _Case, ranks: int, backward: bool = False) -> None:
    function = getattr(parts, _NAME)
    outcomes = on_ranks(_on_rank, function, cases, backward, ranks=ranks)
    for number, case in enumerate(cases):
        losses, gradient = _one_process(case.vocab, case.size)
        for rank, (name, values) in enumerate(each_rank(outcomes)):
            line = case.line(rank, ranks)
            place, among = line.index(rank), len(line)
            found, own, log, kept = values[number]
            where = f"{name}, {case.name}" + (f", in the group of ranks {line}" * case.in_lines)
            if backward:
                _expect_sent(log, among, where)
            others = _mistakes(case.vocab, case.size, among, place)
            expect_tensor(found, losses, f"{where}: the loss of each token", others=others)
            if backward:
                _expect_gradient(own, _pieces(gradient, among, 0.0)[place], where, among)
            expect_kept(kept, f"{where}: it")


def _expect_gradient(found: Any, right: "Tensor", where: str, ranks: int) -> None:
    if found is None:
        raise Wrong(f"{where}: nothing leads back to the scores: does autograd know each sum?")
    sums = {float(ranks): "every rank has the gradient of a sum already, whole"}
    expect_tensor(found, right, f"{where}: the gradient of its scores", factors=sums)


def _largest(vocab: int, size: float) -> int:
    return round(_given(vocab, size)[0].max().item())


def _pieces(whole: "Tensor", ranks: int, filler: float) -> "tuple[Tensor, ...]":
    """The words of each rank, filled up to equal numbers."""
    from torch.nn.functional import pad

    missing = -whole.shape[-1] % ranks
    return pad(whole, (0, missing), value=filler).chunk(ranks, -1)


def _one_process(vocab: int, size: float) -> Any:
    """Losses and gradient."""
    from torch.nn.functional import cross_entropy

    logits, labels = _given(vocab, size)
    logits.requires_grad_()
    losses: Any = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    losses = losses.view(_BATCH, _TOKENS)
    losses.backward(_weights())
    return losses.detach(), logits.grad


def _mistakes(vocab: int, size: float, ranks: int, rank: int) -> "dict[str, Tensor]":
    """Losses that a rank might find by mistake."""
    import math

    import torch

    logits, labels = _given(vocab, size)
    pieces, top = torch.stack(_pieces(logits, ranks, -math.inf)), logits.amax(-1)
    words, numbers = pieces.shape[-1], torch.arange(ranks).view(-1, 1, 1)
    local = labels - words * numbers  # (ranks, batch, sequence), as what follows
    own = (local >= 0) & (local < words)
    first, nearest = (
        pieces.gather(-1, place[..., None]).squeeze(-1) - top
        for place in (local * own, local.clamp(0, words - 1))
    )
    right, sums = first.where(own, 0), (pieces - top[..., None]).exp().sum(-1)
    tops = pieces.amax(-1)
    apart = (pieces - tops[..., None]).exp().sum(-1).sum(0).log()
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
        "made with a sum whose parts had different numbers taken off": apart
        - (right + (top - tops).where(own, 0)).sum(0),
        "of the other sign": right.sum(0) - total,
    }


def _on_rank(function: Any, cases: tuple[_Case, ...], backward: bool) -> Any:
    import math

    import torch
    import torch.distributed as dist

    from course_lib.measure.wire import log_wire
    from course_lib.scratch.tensor.region import TensorParallel
    from course_lib.scratch.tensor.sequence import SequenceParallel
    from course_lib.scratch.three_d import own_group

    found = []
    lines = own_group(LINES) if dist.get_world_size() == 3 else None
    for case in cases:
        region = SequenceParallel(lines) if case.in_lines else TensorParallel()
        logits, labels = _given(case.vocab, case.size)
        own = _pieces(logits, region.ranks, -math.inf)[region.rank].clone()
        given = own.clone(), labels.clone()
        own.requires_grad_()
        with log_wire() as log:
            losses = function(own, labels, region)
            if backward and getattr(losses, "requires_grad", False):
                (losses * _weights()).sum().backward()
        losses = losses.detach() if isinstance(losses, torch.Tensor) else losses
        kept = {
            "the logits": torch.equal(own, given[0]),
            "the labels": torch.equal(labels, given[1]),
        }
        found.append((losses, own.grad, log, kept))
    return found


def _prepared(parts: SimpleNamespace) -> Any:
    import torch

    from course_lib.scratch.tensor.region import TensorParallel

    region, labels = TensorParallel(), torch.arange(256).view(1, 256)
    logits = torch.ones(1, 256, 4096, requires_grad=True)
    function = getattr(parts, _NAME)
    return lambda: function(logits, labels, region).sum().backward()


def _by_torch() -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.nn.functional import cross_entropy

    mesh, labels = init_device_mesh("cpu", (dist.get_world_size(),)), torch.arange(256)
    local = torch.ones(256, 4096, requires_grad=True)

    def once() -> None:
        with loss_parallel():
            loss: Any = cross_entropy(DTensor.from_local(local, mesh, [Shard(1)]), labels)
            loss.backward()

    return once


VOCABULARY = build(
    "vocabulary",
    title="the loss over a cut vocabulary",
    hints=(
        "log of the sum of exp(score) minus the score of the label. Which three numbers of a token "
        "does no rank have alone?",
        "Take the largest score of all ranks off first: dist.all_reduce with ReduceOp.MAX, on a "
        "detached copy, since it needs no gradient.",
        "This rank's words are region.rank * n and the n-1 after it, n = logits.shape[-1]. A label "
        "elsewhere must look up something that exists, and then count as 0.",
        "region.sum((logits - top).exp().sum(-1)).log() - region.sum(the label's score, or 0).",
    ),
    steps=(
        Step("the losses", (_NAME,), _losses),
        Step("large scores and padding", (_NAME,), _hard),
        Step("the gradients", (_NAME,), _gradients),
    ),
    race=Race("the loss of 256 tokens, 4096 words a rank, both passes", _prepared, _by_torch),
)
