"""Build 10.13: the loss of a vocabulary that is cut over ranks."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_sent, expect_tensor
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import each_rank, on_ranks
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


def _losses(parts: SimpleNamespace) -> None:
    _check(parts, 6, ranks=2)


def _hard(parts: SimpleNamespace) -> None:
    """Scores that overflow, padding on one rank, and a rank that has nothing else."""
    _check(parts, 7, 4, ranks=3, size=200.0)


def _gradients(parts: SimpleNamespace) -> None:
    """And the messages of both passes."""
    _check(parts, 7, ranks=3, backward=True)


def _expect_sent(outcomes: list[Outcome]) -> None:
    size = 4 * _BATCH * _TOKENS
    logs = [Outcome(None, one.value[0][2]) for one in outcomes]
    why = "a maximum and two sums, each of one number a token, and none on the way back"
    expect_sent(logs, {"all-reduce": (3, 3 * size)}, why)


def _check(
    parts: SimpleNamespace,
    *vocabularies: int,
    ranks: int,
    size: float = 1.0,
    backward: bool = False,
) -> None:
    function = getattr(parts, _NAME)
    outcomes = on_ranks(_on_rank, function, vocabularies, size, backward, ranks=ranks)
    if backward:
        _expect_sent(outcomes)
    for number, vocab in enumerate(vocabularies):
        losses, gradient = _one_process(vocab, size)
        for rank, (name, values) in enumerate(each_rank(outcomes)):
            found, own, _ = values[number]
            large = f", scores up to {_largest(vocab, size)}" if size > 1 else ""
            where = f"{name}, {vocab} words{large}"
            others = _mistakes(vocab, size, ranks, rank)
            expect_tensor(found, losses, f"{where}: the loss of each token", others=others)
            if backward:
                _expect_gradient(own, _pieces(gradient, ranks, 0.0)[rank], where, ranks)


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


def _on_rank(function: Any, vocabularies: tuple[int, ...], size: float, backward: bool) -> Any:
    import math

    import torch

    from course_lib.measure.wire import log_wire
    from course_lib.scratch.tensor.region import TensorParallel

    region, found = TensorParallel(), []
    for vocab in vocabularies:
        logits, labels = _given(vocab, size)
        own = _pieces(logits, region.ranks, -math.inf)[region.rank].clone().requires_grad_()
        with log_wire() as log:
            losses = function(own, labels, region)
            if backward and getattr(losses, "requires_grad", False):
                (losses * _weights()).sum().backward()
        losses = losses.detach() if isinstance(losses, torch.Tensor) else losses
        found.append((losses, own.grad, log))
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
