"""Build 2.10: gradient accumulation in one process, and on ranks with one exchange."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_none_of, expect_tensor
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.buckets import gradient_syncs

if TYPE_CHECKING:
    from torch import Tensor, nn

# For each micro-batch, the labels that count in each of its samples.
Lengths: TypeAlias = Sequence[Sequence[int]]

_WORDS, _SEQUENCE = 11, 5
_EVEN: Lengths = ((5, 5), (5, 5), (5, 5))
_RAGGED: Lengths = ((5, 2, 4), (1,), (3, 3))
_ONLY_PADDING: Lengths = ((5, 2), (0, 0), (4,))
# Of each rank; the last micro-batch of one of them is padding. The first two have 257 tokens, which
# bf16 makes 256.
_OF_RANKS: tuple[Lengths, ...] = (
    ((5, 2), (*[5] * 46, 1), (4, 4)),
    ((1,), (5, 5), (0,)),
    ((2,), (2,), (5,)),
)


def _model() -> "nn.Module":
    """A word's logits for the next one, without any context."""
    from collections import OrderedDict

    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = {"embed": nn.Embedding(_WORDS, 6), "head": nn.Linear(6, _WORDS)}
        return nn.Sequential(OrderedDict(layers))


def _window(lengths: Lengths, seed: int = 0) -> "list[tuple[Tensor, Tensor]]":
    """Micro-batches of random words; labels beyond a sample's length are padding."""
    import torch

    from course_lib.scratch.accumulation import IGNORE

    generator = torch.Generator().manual_seed(seed)
    window = []
    for micro_batch in lengths:
        size = (2, len(micro_batch), _SEQUENCE)
        inputs, labels = torch.randint(0, _WORDS, size, generator=generator)
        for sample, length in enumerate(micro_batch):
            labels[sample, length:] = IGNORE
        window.append((inputs, labels))
    return window


def _gradients(window: "Sequence[tuple[Tensor, Tensor]]", scale: float) -> "dict[str, Tensor]":
    """The gradients of all losses in the window, summed and multiplied by `scale`."""
    import torch

    from course_lib.scratch.accumulation import loss_sum

    model = _model()
    total = torch.stack([loss_sum(model(x), y) for x, y in window]).sum()
    torch.autograd.backward(scale * total)
    return _taken(model)


def _taken(model: "nn.Module") -> "dict[str, Tensor]":
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _tokens(lengths: Lengths) -> int:
    return sum(map(sum, lengths))


def _loss(windows: "Sequence[tuple[Tensor, Tensor]]", tokens: int) -> "Tensor":
    import torch

    from course_lib.scratch.accumulation import loss_sum

    model = _model()
    return torch.stack([loss_sum(model(x), y).detach() for x, y in windows]).sum() / tokens


def _expect_loss(
    found: Any, expected: "Tensor", what: str, factors: Mapping[float, str] | None = None
) -> None:
    """A number or a tensor of one number, without the graph that it came from."""
    import torch

    if getattr(found, "requires_grad", False):
        raise Wrong(f"{what} still has its graph: add up `loss.detach()`")
    found = torch.tensor(found) if isinstance(found, float) else found
    expect_tensor(found, expected, what, factors=factors)


def _even(parts: SimpleNamespace) -> None:
    """Three equal micro-batches, one after the other, and their mean loss."""
    model, window = _model(), _window(_EVEN)
    passes = _followed(model)
    loss = parts.accumulate(model, window)
    _expect_in_turn(passes, len(window))
    _expect_gradients(_taken(model), _EVEN)
    last = {"that of the last micro-batch alone": _loss(window[-1:], _tokens(_EVEN[-1:]))}
    expect_none_of(loss, last, "the returned loss")
    _expect_loss(loss, _loss(window, _tokens(_EVEN)), "the returned loss")


def _expect_in_turn(passes: list[str], micro_batches: int, where: str = "") -> None:
    if passes.count("forward") < micro_batches:
        times = _times(passes.count("forward"))
        raise Wrong(f"{where}the model runs {times} for {micro_batches} micro-batches")
    if passes != ["forward", "backward"] * micro_batches:
        raise Wrong(
            f"{where}a forward pass begins before the backward pass of the micro-batch before it: "
            "the activations of several micro-batches are in memory at once"
        )


def _followed(model: "nn.Module") -> list[str]:
    """Filled with the forward and backward passes of `model`, in their order."""
    passes: list[str] = []

    def forward(_module: Any, _inputs: Any, output: Any) -> None:
        passes.append("forward")
        output.register_hook(lambda _: passes.append("backward"))

    model.register_forward_hook(forward)
    return passes


def _uneven(parts: SimpleNamespace) -> None:
    """Micro-batches of other lengths, with padding; then one of nothing but padding."""
    for lengths, what in (
        (_RAGGED, "micro-batches with 11, 1 and 6 tokens"),
        (_ONLY_PADDING, "a micro-batch of nothing but padding"),
    ):
        model, window = _model(), _window(lengths)
        loss = parts.accumulate(model, window)
        again = zip(window, _window(lengths), strict=True)
        if not all(x.equal(one) and y.equal(two) for (x, y), (one, two) in again):
            raise Wrong(f"{what}: the inputs or labels of the window have changed")
        _expect_gradients(_taken(model), lengths, f"{what}: ")
        _expect_loss(loss, _loss(window, _tokens(lengths)), f"{what}: the returned loss")


def _expect_gradients(found: "Mapping[str, Tensor]", lengths: Lengths, what: str = "") -> None:
    window, tokens = _window(lengths), _tokens(lengths)
    numbers = sum(labels.numel() for _, labels in window)
    mistakes = {"that of the last micro-batch alone": _gradients(window[-1:], 1 / tokens)}
    if lengths is _RAGGED:
        means = _mean_of_means(window, lengths)
        mistakes["the mean of the micro-batches' means: tokens of short ones count more"] = means
    for name, expected in _gradients(window, 1 / tokens).items():
        place = f"{what}the gradient of {name}"
        expect_none_of(found.get(name), {why: g[name] for why, g in mistakes.items()}, place)
        expect_tensor(
            found.get(name),
            expected,
            place,
            factors={
                float(tokens): "it is that of a sum of losses",
                float(len(window)): "as many times as there are micro-batches",
                1 / len(window): "divided by the micro-batches once too often",
                tokens / numbers: "the padding is counted as well",
            },
        )


def _mean_of_means(
    pieces: "Sequence[tuple[Tensor, Tensor]]", lengths: Lengths
) -> "dict[str, Tensor]":
    """The gradients of the mean over pieces, each divided by its own tokens."""
    found = [
        _gradients([piece], 1 / (len(pieces) * sum(own)))
        for piece, own in zip(pieces, lengths, strict=True)
    ]
    return _added(found)


def _added(parts: "Sequence[Mapping[str, Tensor]]") -> "dict[str, Tensor]":
    return {name: sum((part[name] for part in parts[1:]), parts[0][name]) for name in parts[0]}


def _on_rank(
    function: Any, calls: Sequence[bool], micro_batches: int = 3
) -> list[tuple[Any, Any, list[int], str, list[str]]]:
    """For each `no_sync`: loss, gradients, bytes exchanged, what is not as before, passes."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from course_lib.measure.collectives import log_buckets

    rank, results = dist.get_rank(), []
    window = _window(_OF_RANKS[rank][:micro_batches], seed=rank)
    for no_sync in calls:
        model = _model()
        ddp = DistributedDataParallel(model)
        log, passes = log_buckets(ddp), _followed(model)
        loss = function(ddp, window, no_sync=no_sync)
        # With its graph it would be no answer that can be sent.
        graph = getattr(loss, "requires_grad", False)
        loss = loss.detach().requires_grad_() if graph else loss
        results.append((loss, _taken(model), log.bucket_bytes, _changed(ddp), passes))
    return results


def _changed(ddp: Any) -> str:
    """What is not as it was before the window, in words."""
    if not ddp.require_backward_grad_sync:
        return (
            "DDP still does not exchange: `require_backward_grad_sync` is False, so ranks drift "
            "apart from here on"
        )
    return "" if ddp.training and ddp.module.training else "the model is in eval mode"


def _two_ranks(parts: SimpleNamespace) -> None:
    """The gradients of 2 ranks are those of one process; also of windows of one micro-batch."""
    outcomes = on_ranks(_two_windows, parts.accumulate_ddp, ranks=2)
    for place, micro_batches in enumerate((3, 1)):
        found = [Outcome(one.value[place], one.wire) for one in outcomes]
        _expect_of_one_process(found, micro_batches)


def _two_windows(function: Any) -> list[Any]:
    return [_on_rank(function, [True], micro_batches) for micro_batches in (3, 1)]


def _three_ranks(parts: SimpleNamespace) -> None:
    """As many exchanges as the theory has, with no_sync and without; on 3 ranks."""
    outcomes = on_ranks(_on_rank, parts.accumulate_ddp, [True, False], ranks=3)
    steps, size = len(_OF_RANKS[0]), sum(p.nbytes for p in _model().parameters())
    for name, results in each_rank(outcomes):
        for no_sync, (_, _, exchanged, *_) in zip((True, False), results, strict=True):
            right = gradient_syncs(steps, steps, no_sync)
            if sum(exchanged) != right * size:
                raise Wrong(
                    f"{name}, no_sync={no_sync}: DDP exchanges the gradients "
                    f"{_times(sum(exchanged) // size)} in a window of {steps} micro-batches, "
                    f"expected {_times(right)}"
                )
    _expect_of_one_process(outcomes)


def _expect_of_one_process(outcomes: Sequence[Outcome], micro_batches: int = 3) -> None:
    """Gradients and losses of all ranks, in each of their calls."""
    for name, results in each_rank(outcomes):
        if not all(exchanged for _, _, exchanged, *_ in results):
            raise Wrong(f"{name}: DDP exchanges no gradients in the whole window")
        if changed := next((words for *_, words, _ in results if words), ""):
            raise Wrong(f"{name}: after the window {changed}")
        for *_, passes in results:
            _expect_in_turn(passes, micro_batches, f"{name}: ")
    for call in range(len(outcomes[0].value)):
        calls = [(name, value[call]) for name, value in each_rank(outcomes)]
        _expect_alike([(name, gradients) for name, (_, gradients, *_) in calls])
        lengths = [one[:micro_batches] for one in _OF_RANKS[: len(calls)]]
        for rank, (name, (loss, gradients, *_)) in enumerate(calls):
            words = name if micro_batches > 1 else f"{name}, a window of one micro-batch"
            _expect_rank(words, gradients, lengths)
            _expect_rank_loss(f"{words}: the returned loss", loss, rank, lengths)


def _expect_alike(found: "Sequence[tuple[str, dict[str, Tensor]]]") -> None:
    for name, gradients in found:
        for parameter, first in found[0][1].items():
            if parameter in gradients and not gradients[parameter].equal(first):
                raise Wrong(
                    f"{name}: the gradient of {parameter} is not that of rank 0: what a rank adds "
                    "after the exchange, the others do not get"
                )


def _expect_rank(name: str, found: "Mapping[str, Tensor]", lengths: Sequence[Lengths]) -> None:
    ranks, tokens = len(lengths), sum(map(_tokens, lengths))
    own_means = _mean_of_ranks(lengths)
    for parameter, expected in _gradients(_all(lengths), 1 / tokens).items():
        place = f"{name}: the gradient of {parameter}"
        mistakes = {"the mean over ranks, each divided by its own tokens": own_means[parameter]}
        expect_none_of(found.get(parameter), mistakes, place)
        expect_tensor(
            found.get(parameter),
            expected,
            place,
            factors={
                1 / ranks: "DDP takes the mean over ranks",
                float(ranks): "as many times as there are ranks",
                float(tokens): "it is that of a sum of losses",
                tokens / ranks: "it is that of a sum of losses, divided by the ranks",
                257 / 256: "a count of tokens in bf16 has no odd numbers above 256",
            },
        )


def _all(lengths: Sequence[Lengths]) -> "list[tuple[Tensor, Tensor]]":
    """The micro-batches of all ranks."""
    return [one for rank, own in enumerate(lengths) for one in _window(own, seed=rank)]


def _mean_of_ranks(lengths: Sequence[Lengths]) -> "dict[str, Tensor]":
    """The mean over ranks of gradients that each rank divides by its own tokens."""
    found = [
        _gradients(_window(own, seed=rank), 1 / (len(lengths) * _tokens(own)))
        for rank, own in enumerate(lengths)
    ]
    return _added(found)


def _expect_rank_loss(what: str, loss: Any, rank: int, lengths: Sequence[Lengths]) -> None:
    ranks, tokens = len(lengths), sum(map(_tokens, lengths))
    own = _window(lengths[rank], seed=rank)
    mistakes = {
        "that of this rank's tokens alone": _loss(own, _tokens(lengths[rank])),
        "this rank's share of the mean": _loss(own, tokens),
        "this rank's share of the mean, times the ranks": ranks * _loss(own, tokens),
    }
    expect_none_of(loss, mistakes, what)
    factors = {float(ranks): "as many times as there are ranks"}
    _expect_loss(loss, _loss(_all(lengths), tokens), what, factors)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _prepared(parts: SimpleNamespace) -> Any:
    """A window of 4 micro-batches through a small GPT on every rank."""
    import torch

    from course_lib.scratch.gpt import GPT
    from course_lib.scratch.replicas.ddp import DDP

    torch.manual_seed(0)
    model = DDP(GPT(layers=2, hidden=64, heads=4, vocab=64, context=32))
    tokens = torch.randint(0, 64, (4, 2, 4, 32))
    window = [(inputs, labels) for inputs, labels in tokens]

    def once() -> None:
        model.zero_grad()
        parts.accumulate_ddp(model, window)

    return once


ACCUMULATION = build(
    "accumulation",
    title="one large batch in pieces",
    hints=(
        "`backward()` adds to `.grad`. By what must each piece be divided, so that the pieces "
        "add up to the mean over all tokens that count?",
        "Count the window's tokens first: `(labels != IGNORE).sum()`, over all micro-batches. "
        "Then, for each micro-batch, the sum of its losses / tokens, and its backward pass.",
        "On ranks: the tokens of all ranks, by `dist.all_reduce(tokens)`. DDP takes the mean over "
        "ranks, where you want the sum.",
        "`with model.no_sync():` belongs around the forward pass as well, and around all "
        "micro-batches but the last; `contextlib.nullcontext()` is a `with` that does nothing.",
    ),
    steps=(
        Step("equal micro-batches", ("accumulate",), _even),
        Step("padding, and uneven micro-batches", ("accumulate",), _uneven),
        Step("the gradients of all ranks", ("accumulate_ddp",), _two_ranks),
        Step("one exchange", ("accumulate_ddp",), _three_ranks),
    ),
    race=Race("4 micro-batches of 128 tokens through a small GPT", _prepared),
)
