"""Build 2.10: gradient accumulation in one process, and on ranks with one exchange."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare, compare_here
from course_lib.checking.builds.lazily import dist, later, nn, torch
from course_lib.checking.builds.rows import Must, Never, Row
from course_lib.checking.races import Race
from course_lib.theory.network.bucket_timeline import gradient_syncs

_collectives = later("course_lib.measure.wire")
_parallel = later("torch.nn.parallel")
_scratch = later("course_lib.scratch.accumulation")

# For each micro-batch, the number of unpadded labels in each of its samples.
Lengths: TypeAlias = Sequence[Sequence[int]]
_Window: TypeAlias = "Sequence[tuple[torch.Tensor, torch.Tensor]]"
_Gradients: TypeAlias = "Mapping[str, torch.Tensor]"

_WORDS, _SEQUENCE = 11, 5
_EVEN: Lengths = ((5, 5), (5, 5), (5, 5))
_RAGGED: Lengths = ((5, 2, 4), (1,), (3, 3))
_ONLY_PADDING: Lengths = ((5, 2), (0, 0), (4,))
# One per rank. Rank 1's last micro-batch is all padding. Ranks 0 and 1 have 257 tokens together,
# which bf16 rounds to 256.
_RANK_LENGTHS: tuple[Lengths, ...] = (
    ((5, 2), (*[5] * 46, 1), (4, 4)),
    ((1,), (5, 5), (0,)),
    ((2,), (2,), (5,)),
)


def _model() -> "nn.Module":
    """A model that predicts the next word's logits from the current word alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = {"embed": nn.Embedding(_WORDS, 6), "head": nn.Linear(6, _WORDS)}
        return nn.Sequential(OrderedDict(layers))


def _window(lengths: Lengths, seed: int = 0) -> _Window:
    """Micro-batches of random words; labels beyond a sample's length are set to IGNORE."""
    generator = torch.Generator().manual_seed(seed)
    window = []
    for micro_batch in lengths:
        size = (2, len(micro_batch), _SEQUENCE)
        inputs, labels = torch.randint(0, _WORDS, size, generator=generator)
        for sample, length in enumerate(micro_batch):
            labels[sample, length:] = _scratch.IGNORE
        window.append((inputs, labels))
    return window


def _tokens(lengths: Lengths) -> int:
    return sum(map(sum, lengths))


def _total(model: "nn.Module", window: _Window) -> "torch.Tensor":
    return torch.stack([_scratch.loss_sum(model(x), y) for x, y in window]).sum()


def _loss(window: _Window, tokens: int) -> "torch.Tensor":
    return _total(_model(), window).detach() / tokens


def _gradients(window: _Window, scale: float) -> _Gradients:
    """The gradients of all losses in the window, summed and multiplied by `scale`."""
    model = _model()
    torch.autograd.backward(scale * _total(model, window))
    return _grads(model)


def _grads(model: "nn.Module") -> _Gradients:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _mean(ranks: Sequence[_Gradients]) -> _Gradients:
    return {name: torch.stack([one[name] for one in ranks]).mean(0) for name in ranks[0]}


def _log_passes(model: "nn.Module") -> list[str]:
    """A list to which hooks append "forward" or "backward" for each pass of `model`, in order."""
    passes: list[str] = []

    def forward(_module: Any, _inputs: Any, output: Any) -> None:
        passes.append("forward")
        output.register_hook(lambda _: passes.append("backward"))

    model.register_forward_hook(forward)
    return passes


# Rows for both functions


def _check_order(passes: list[str], count: int) -> Iterator[Row]:
    times = passes.count("forward")
    yield Never(times < count, f"the model runs {_times(times)} for {count} micro-batches")
    yield Never(
        passes != ["forward", "backward"] * count,
        "a forward pass begins before the backward pass of the micro-batch before it: the "
        "activations of several micro-batches are in memory at once",
    )


def _check_loss(
    loss: Any,
    expected: "torch.Tensor",
    others: "Mapping[str, torch.Tensor]",
    what: str = "the returned loss",
    factors: Mapping[float, str] | None = None,
) -> Iterator[Row]:
    """Check a loss, a number or a tensor of one number, that must not carry its graph."""
    graph = getattr(loss, "requires_grad", False)
    yield Never(graph, f"{what} still has its graph: add up `loss.detach()`")
    loss = torch.tensor(loss) if isinstance(loss, float) else loss
    yield Must(what, loss, expected, others, factors or {})


def _check_gradients(
    actual: _Gradients,
    right: _Gradients,
    mistakes: Mapping[str, _Gradients],
    factors: Mapping[float, str],
    what: str = "",
) -> Iterator[Row]:
    for name, expected in right.items():
        others = {why: gradients[name] for why, gradients in mistakes.items()}
        yield Must(f"{what}the gradient of {name}", actual.get(name), expected, others, factors)


# In one process


def _equal_batches(parts: SimpleNamespace) -> Iterator[Row]:
    """Three micro-batches of equal size, run in turn: gradients and mean loss."""
    model, window = _model(), _window(_EVEN)
    passes = _log_passes(model)
    loss = parts.accumulate(model, window)
    yield from _check_order(passes, len(window))
    yield from _check_one_process(_grads(model), _EVEN)
    last = {"that of the last micro-batch alone": _loss(window[-1:], _tokens(_EVEN[-1:]))}
    yield from _check_loss(loss, _loss(window, _tokens(_EVEN)), last)


def _padded_batches(parts: SimpleNamespace) -> Iterator[Row]:
    """Micro-batches of unequal lengths, with padding; then one that is all padding."""
    for lengths, what in (
        (_RAGGED, "micro-batches with 11, 1 and 6 tokens: "),
        (_ONLY_PADDING, "a micro-batch of nothing but padding: "),
    ):
        model, window = _model(), _window(lengths)
        loss = parts.accumulate(model, window)
        again = zip(window, _window(lengths), strict=True)
        same = all(x.equal(one) and y.equal(two) for (x, y), (one, two) in again)
        yield Never(not same, f"{what}the inputs or labels of the window have changed")
        yield from _check_one_process(_grads(model), lengths, what)
        right = _loss(window, _tokens(lengths))
        yield from _check_loss(loss, right, {}, f"{what}the returned loss")


def _check_one_process(gradients: _Gradients, lengths: Lengths, what: str = "") -> Iterator[Row]:
    window, tokens = _window(lengths), _tokens(lengths)
    numbers = sum(labels.numel() for _, labels in window)
    mistakes = {"that of the last micro-batch alone": _gradients(window[-1:], 1 / tokens)}
    if lengths is _RAGGED:
        pairs = zip(window, lengths, strict=True)
        means = _mean([_gradients([pair], 1 / sum(counts)) for pair, counts in pairs])
        mistakes["the mean of the micro-batches' means: tokens of short ones count more"] = means
    factors = {
        float(tokens): "it is that of a sum of losses",
        float(len(window)): "as many times as there are micro-batches",
        1 / len(window): "divided by the micro-batches once too often",
        tokens / numbers: "the padding is counted as well",
    }
    yield from _check_gradients(gradients, _gradients(window, 1 / tokens), mistakes, factors, what)


# On several ranks


@dataclass(frozen=True)
class _Windows(Case):
    """A window of micro-batches on each rank."""

    micro_batches: int = 3
    no_sync: bool = True

    def words(self, _: Sequence[int]) -> str:
        if self.micro_batches == 1:
            return "a window of one micro-batch"
        return f"no_sync={self.no_sync}" if self.ranks == 3 else ""


@dataclass(frozen=True)
class _Seen:
    """A rank's results, and what it exchanged."""

    loss: Any
    gradients: _Gradients
    exchanged: list[int]  # bytes of each bucket
    quiet: bool  # DDP no longer exchanges gradients
    in_eval_mode: bool
    passes: list[str]


def _run(parts: SimpleNamespace, case: _Windows, _: Any) -> _Seen:
    rank, model = dist.get_rank(), _model()
    window = _window(_RANK_LENGTHS[rank][: case.micro_batches], seed=rank)
    ddp = _parallel.DistributedDataParallel(model)
    log, passes = _collectives.log_buckets(ddp), _log_passes(model)
    loss = parts.accumulate_ddp(ddp, window, no_sync=case.no_sync)
    # A loss that carries its graph cannot be sent between processes.
    graph = getattr(loss, "requires_grad", False)
    loss = loss.detach().requires_grad_() if graph else loss
    quiet, trains = not ddp.require_backward_grad_sync, ddp.training and model.training
    return _Seen(loss, _grads(model), log.bucket_bytes, quiet, not trains, passes)


def _check_exchanges(seen: _Seen, at: Place) -> Iterator[Row]:
    """Check the number of exchanges against theory, then everything that `_check_ranks` checks."""
    steps, size = at.case.micro_batches, sum(p.nbytes for p in _model().parameters())
    expected, exchanged = gradient_syncs(steps, steps, at.case.no_sync), sum(seen.exchanged)
    yield Never(
        exchanged != expected * size,
        f"DDP exchanges the gradients {_times(exchanged // size)} in a window of {steps} "
        f"micro-batches, expected {_times(expected)}",
    )
    yield from _check_ranks(seen, at)


def _check_ranks(seen: _Seen, at: Place) -> Iterator[Row]:
    """Check that each rank has the gradients and loss of one process with all micro-batches."""
    ranks, steps, first = at.ranks, at.case.micro_batches, at.every[0].gradients
    yield Never(not seen.exchanged, "DDP exchanges no gradients in the whole window")
    yield Never(
        seen.quiet,
        "after the window DDP still does not exchange: `require_backward_grad_sync` is False, so "
        "ranks drift apart from here on",
    )
    yield Never(seen.in_eval_mode, "after the window the model is in eval mode")
    yield from _check_order(seen.passes, steps)
    for name, gradient in first.items():
        yield Never(
            name in seen.gradients and not seen.gradients[name].equal(gradient),
            f"the gradient of {name} is not that of rank 0: what a rank adds after the exchange, "
            "the others do not get",
        )
    lengths = [one[:steps] for one in _RANK_LENGTHS[:ranks]]
    each, tokens = [_window(one, n) for n, one in enumerate(lengths)], list(map(_tokens, lengths))
    window, total = [pair for part in each for pair in part], sum(tokens)
    means = _mean([_gradients(part, 1 / n) for part, n in zip(each, tokens, strict=True)])
    factors = {
        1 / ranks: "DDP takes the mean over ranks",
        float(ranks): "as many times as there are ranks",
        float(total): "it is that of a sum of losses",
        total / ranks: "it is that of a sum of losses, divided by the ranks",
        257 / 256: "a count of tokens in bf16 has no odd numbers above 256",
    }
    mistakes = {"the mean over ranks, each divided by its own tokens": means}
    yield from _check_gradients(seen.gradients, _gradients(window, 1 / total), mistakes, factors)
    share = _loss(each[at.rank], total)
    others = {
        "that of this rank's tokens alone": share * total / tokens[at.rank],
        "this rank's share of the mean": share,
        "this rank's share of the mean, times the ranks": ranks * share,
    }
    times = {float(ranks): "as many times as there are ranks"}
    yield from _check_loss(seen.loss, _loss(window, total), others, factors=times)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


_gpt = later("course_lib.scratch.gpt")


def _accumulation(parts: SimpleNamespace) -> Callable[[], object]:
    torch.manual_seed(0)
    small = _gpt.GPT(layers=2, hidden=64, heads=4, vocab=64, context=32)
    model = later("course_lib.scratch.ddp").DDP(small)
    window = [(inputs, labels) for inputs, labels in torch.randint(0, 64, (4, 2, 4, 32))]
    return lambda: (model.zero_grad(), parts.accumulate_ddp(model, window))


ACCUMULATION = build(
    "accumulation",
    steps=(
        compare_here("equal micro-batches", ("accumulate",), _equal_batches),
        compare_here("padding, and uneven micro-batches", ("accumulate",), _padded_batches),
        compare(
            "the gradients of all ranks",
            ("accumulate_ddp",),
            _run,
            _check_ranks,
            (_Windows(), _Windows(1)),
        ),
        compare(
            "one exchange",
            ("accumulate_ddp",),
            _run,
            _check_exchanges,
            (_Windows(ranks=3), _Windows(no_sync=False, ranks=3)),
        ),
    ),
    race=Race("4 micro-batches of 128 tokens through a small GPT", _accumulation),
)
