"""Exercises and quiz of chapter 2, gradient accumulation."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from course_lib.checking import (
    Question,
    Wrong,
    exercise,
    expect_calls,
    expect_equal,
    expect_parts,
    run,
)
from course_lib.checking.builds import accumulation as accumulation_build
from course_lib.theory.network.buckets import gradient_syncs
from course_lib.theory.step.batching import Batching, batch_cost, scaled_learning_rate

GPT2 = 124_439_808


@exercise(
    "2.1",
    kind="calculate",
    title="two nodes, batch 512",
    hints=(
        "global batch = micro-batch × accumulation × dp, and dp is 8 here.",
        "With no_sync there is one exchange per update.",
    ),
)
def _accumulation(answer: Any) -> None:
    expect_equal(
        answer,
        [16, 1000],
        "512 = 4 × accumulation × 8 ranks, and with no_sync each update exchanges once",
        wants="two whole numbers: accumulation and all-reduces",
    )


@exercise(
    "2.2",
    kind="debug",
    title="does accumulation save steps?",
    hints=(
        "How often does each sample go through the model in an epoch?",
        "1000 / 5 micro-batches: an update comes after each, or after every second one.",
    ),
)
def _saves_steps(answer: Any) -> None:
    expected = []
    for accumulation in (1, 2):
        epoch = Batching(samples=1000, micro_batch=5, accumulation=accumulation).epoch()
        expected.append([epoch.micro_steps, epoch.updates])
    expect_equal(
        answer,
        expected,
        "every sample still goes through the model once; only the updates become fewer",
        wants="two lists of two whole numbers: [passes, updates]",
    )


_TRAIN = "train(model, optimizer, batches, accumulation)"


@exercise(
    "2.3",
    kind="debug",
    title="three mistakes in six lines",
    hints=(
        "What is in .grad when the second window begins?",
        "A mean per micro-batch must become the mean of the window: divide sums.",
        "What happens to 3 micro-batches with accumulation 2?",
    ),
)
def _train(function: Any) -> None:
    for sizes, accumulation, what in (
        ([4, 4], 1, "one micro-batch per update"),
        ([4, 4], 2, "two equal micro-batches in one update"),
        ([4, 4, 4, 4], 2, "two updates: is .grad empty at the start of the second?"),
        ([6, 2], 2, "micro-batches of 6 and 2 samples: each sample must count once"),
        ([4, 4, 4], 2, "a last window of one micro-batch"),
    ):
        _compare_training(function, sizes, accumulation, what)


def _compare_training(function: Any, sizes: list[int], accumulation: int, what: str) -> None:
    """Train with the learner's loop and with whole windows; refuse different weights."""
    import torch

    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(n, 3, generator=generator), torch.randn(n, 1, generator=generator))
        for n in sizes
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs, whole = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    whole.load_state_dict(theirs.state_dict())
    start = theirs.weight.detach().clone()
    theirs_sgd = torch.optim.SGD(theirs.parameters(), lr=0.1)
    run(function, theirs, theirs_sgd, batches, accumulation, signature=_TRAIN)
    if torch.equal(theirs.weight, start):
        raise Wrong(f"gave unchanged weights, expected an update because of {what}")
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for first in range(0, len(batches), accumulation):
        inputs, targets = map(torch.cat, zip(*batches[first : first + accumulation], strict=True))
        optimizer.zero_grad()
        (whole(inputs) - targets).square().mean().backward()
        optimizer.step()
    if not torch.allclose(theirs.weight, whole.weight, atol=1e-5):
        given, expected = (model.weight[0, 0].item() for model in (theirs, whole))
        raise Wrong(
            f"gave weight {given:.4f}, expected {expected:.4f} because this case has {what}"
        )


@exercise(
    "2.4",
    kind="implement",
    title="the loss of a window",
    hints=(
        "Turn each mean back into a sum: mean × tokens.",
        "NaN × 0 is NaN: leave micro-batches without tokens out.",
    ),
)
def _window_loss(function: Any) -> None:
    expect_calls(
        function,
        [
            (([2.0, 4.0], [10, 90]), 3.8, "(10 × 2.0 + 90 × 4.0) / 100 tokens"),
            (([1.5, 2.5, 3.5], [8, 8, 8]), 2.5, "equal counts give the plain mean"),
            (([2.0, math.nan], [5, 0]), 2.0, "a micro-batch without tokens has no say"),
        ],
        signature="window_loss(means, tokens)",
        rel=1e-9,
    )


class _Recorder:
    """Stands in for a DDP model: notes at each forward whether the coming backward exchanges."""

    def __init__(self) -> None:
        import torch

        self.scale = torch.ones(1, requires_grad=True)
        self.quiet = False
        self.exchanges: list[bool] = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    def __call__(self, logits: Any) -> Any:
        self.exchanges.append(not self.quiet)  # like DDP, which decides in forward
        return logits * self.scale


@exercise(
    "2.5",
    kind="debug",
    title="still slow",
    hints=(
        "When does DDP decide whether it will exchange? See section 2.3.",
        "model(inputs) belongs into the block of model.no_sync(), like backward().",
    ),
)
def _backward_window(function: Any) -> None:
    import torch

    from course_lib.scratch.accumulation import loss_sum

    generator = torch.Generator().manual_seed(0)
    window = [
        (torch.randn(1, 3, 5, generator=generator), torch.tensor([[0, 1, 2]])) for _ in range(3)
    ]
    model, alone = _Recorder(), _Recorder()
    run(function, model, window, signature="backward_window(model, window)")
    if not model.exchanges:
        raise Wrong("gave no forward pass, expected one per micro-batch: call model(inputs)")
    expect_equal(
        sum(model.exchanges),
        1,
        "DDP decides in the forward pass whether the coming backward exchanges gradients",
    )
    if not model.exchanges[-1]:
        raise Wrong("gave an exchange before the last micro-batch, expected it at the last one")
    total = torch.stack([loss_sum(alone(inputs), labels) for inputs, labels in window]).sum()
    (expected,) = torch.autograd.grad(total / 9, alone.scale)
    if model.scale.grad is None or not torch.allclose(model.scale.grad, expected):
        raise Wrong("gave another gradient, expected that of the mean over all 9 tokens")


@exercise(
    "2.6",
    kind="calculate",
    title="bytes",
    hints=("How many exchanges are there in each case?", "An fp32 gradient has 4 bytes."),
)
def _bytes(answer: Any) -> None:
    expected = [gradient_syncs(6400, 32, no_sync) * 4 * GPT2 for no_sync in (False, True)]
    expect_equal(
        answer,
        expected,
        "each exchange has 4 bytes per parameter, and there are 6400 or 200 of them",
        wants="two whole numbers of bytes",
    )


@exercise(
    "2.7",
    kind="predict",
    title="noise",
    hints=("512 / 32 = 16.", "The standard deviation is the root of the variance."),
)
def _noise(answer: Any) -> None:
    expect_equal(
        answer,
        [0.08 * 32 / 512, 4.0],
        "the variance goes as 1/B, the standard deviation as 1/√B",
        wants="two numbers: the variance and the factor",
        rel=1e-6,
    )


@exercise(
    "2.8",
    kind="calculate",
    title="the learning rate",
    hints=("The ratio of the batches is 1/16.", "√16 = 4."),
)
def _learning_rates(answer: Any) -> None:
    expected = [
        scaled_learning_rate(0.8, base_batch=2048, batch=128, rule="linear"),
        scaled_learning_rate(0.0006, base_batch=2048, batch=128, rule="sqrt"),
    ]
    expect_equal(
        answer,
        expected,
        "the batch is 16 times smaller: divide by 16 for SGD and by √16 for Adam",
        wants="two learning rates",
        rel=1e-6,
    )


@exercise(
    "2.9",
    kind="debug",
    title="do large batches hurt?",
    hints=(
        "samples / fewest = 1 + B / Bcrit.",
        "updates / fewest = 1 + Bcrit / B.",
    ),
)
def _large_batches(answer: Any) -> None:
    expect_parts(answer, 2, "two lists: [samples, updates] for each batch")
    for given, batch in zip(answer, (0.25, 16.0), strict=True):
        cost = batch_cost(batch, critical_batch=2.0)
        expect_equal(
            given,
            [cost.samples, cost.steps],
            f"at {batch}M tokens samples are 1 + B/Bcrit and updates 1 + Bcrit/B",
            wants="two numbers: [samples, updates]",
            rel=1e-6,
        )


BUILDS = (accumulation_build.ACCUMULATION,)

QUIZ = (
    Question(
        "What does accumulation 8 reduce, with the same micro-batch and the same data?",
        ("forward passes", "updates", "memory of the weights"),
        answer=1,
        why="Every sample still passes once; the weights change an eighth as often.",
    ),
    Question(
        "Two gradients that should be equal differ by 2e-7, relative to their size. Probably …",
        ("a bug in the data order", "float32 rounding", "a missing all-reduce"),
        answer=1,
        why="float32 has a relative precision of 6e-8; sums in another order round differently.",
    ),
    Question(
        "When is loss.mean() / accumulation the right loss of a micro-batch?",
        (
            "always",
            "when all micro-batches have equally many tokens",
            "when the optimizer is Adam",
        ),
        answer=1,
        why="Only then is the mean of the means the mean over all tokens.",
    ),
    Question(
        "no_sync surrounds loss.backward() but not the forward pass. What happens?",
        (
            "an error",
            "wrong gradients",
            "right gradients, and an exchange in every micro-step",
        ),
        answer=2,
        why="DDP decides in forward; it exchanges each time, and nobody notices.",
    ),
    Question(
        "The batch is a tenth of the critical batch. Doubling it …",
        (
            "nearly halves the updates",
            "doubles the samples needed",
            "changes nothing",
        ),
        answer=0,
        why="Updates go as 1 + Bcrit/B: 11 becomes 6; samples go from 1.1 to only 1.2.",
    ),
)
