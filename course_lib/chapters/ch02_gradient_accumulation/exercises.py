"""Exercises and quiz of chapter 2, gradient accumulation."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from course_lib.chapters.ch02_gradient_accumulation import builds
from course_lib.checking import (
    Wrong,
    exercise,
    expect_calls,
    expect_choice,
    expect_entries,
    expect_equal,
    expect_numbers,
    expect_parts,
    run,
)
from course_lib.theory.inputs import MODELS, Job, Layout, Recipe
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.network.bucket_timeline import gradient_syncs
from course_lib.theory.step.batching import Batching, batch_cost, noise_scale, scaled_learning_rate

GPT2 = 124_439_808


@exercise("2.1")
def _accumulation(answer: Any) -> None:
    micro_batch = max(size for size in range(1, 17) if 960 // 8 % size == 0)
    accumulations = [
        960 // Batching(960, micro_batch, gpus_per_node=n).global_batch for n in (8, 4)
    ]
    before, after = (gradient_syncs(1000 * each, each, no_sync=True) for each in accumulations)
    expect_equal(
        answer,
        [micro_batch, *accumulations, after / before],
        "each of 8 ranks has 120 sequences, 15 is the largest divisor that fits; 4 ranks need "
        "twice the micro-batches, but there is still one exchange for each update",
        wants="four numbers: micro-batch, two accumulations and a ratio",
    )


@exercise("2.2")
def _saves_steps(answer: Any) -> None:
    before, after = (_per_epoch(accumulation) for accumulation in (1, 4))
    expected = {
        name: (later / count, because)
        for (name, because), count, later in zip(_IN_AN_EPOCH.items(), before, after, strict=True)
    }
    expect_entries(answer, expected, "a dict of factors", each="a factor")


_IN_AN_EPOCH = {
    "forward passes of an epoch": "every sample goes through the model once",
    "updates of an epoch": "four micro-steps make one update",
    "exchanges of an epoch, with no_sync": "there is one in each update",
    "exchanges of an epoch, without no_sync": "there is one in each micro-step",
    "samples behind an update": "four micro-batches are behind one update",
    "bytes stored for the backward pass": "one micro-batch is in memory at a time",
}


def _per_epoch(accumulation: int) -> list[float]:
    """The values named by the keys of `_IN_AN_EPOCH`, in that order."""
    run = Batching(4096, micro_batch=8, accumulation=accumulation, gpus_per_node=2)
    epoch, layout = run.epoch(), Layout(micro_batch=8, accumulation=accumulation)
    syncs = [gradient_syncs(epoch.micro_steps, accumulation, no_sync) for no_sync in (True, False)]
    kept = layer_activation_bytes(Job(MODELS["gpt2-124m"], Recipe(), layout, sequence=1024))
    return [epoch.micro_steps, epoch.updates, *syncs, run.global_batch, kept]


@exercise("2.3")
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
    """Train with the learner's loop and on whole windows; raise Wrong if the weights differ."""
    import torch

    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(n, 3, generator=generator), torch.randn(n, 1, generator=generator))
        for n in sizes
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
    reference = copy.deepcopy(model)
    sgd, reference_sgd = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, reference))
    signature = "train(model, optimizer, batches, accumulation)"
    run(function, model, sgd, batches, accumulation, signature=signature)
    if torch.equal(model.weight, reference.weight):
        raise Wrong(f"gave unchanged weights, expected an update because of {what}")
    for first in range(0, len(batches), accumulation):
        inputs, targets = map(torch.cat, zip(*batches[first : first + accumulation], strict=True))
        reference_sgd.zero_grad()
        (reference(inputs) - targets).square().mean().backward()
        reference_sgd.step()
    if not torch.allclose(model.weight, reference.weight, atol=1e-5):
        trained, expected = (one.weight[0, 0].item() for one in (model, reference))
        raise Wrong(
            f"gave weight {trained:.4f}, expected {expected:.4f} because this case has {what}"
        )


@exercise("2.4")
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
    """Stand-in for a DDP model: records at each forward whether the next backward exchanges."""

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
        self.exchanges.append(not self.quiet)  # like DDP, decide in forward
        return logits * self.scale


@exercise("2.5")
def _backward_window(function: Any) -> None:
    import torch

    from course_lib.scratch.accumulation import loss_sum

    generator = torch.Generator().manual_seed(0)
    window = [
        (torch.randn(1, 3, 5, generator=generator), torch.tensor([[0, 1, 2]])) for _ in range(3)
    ]
    model, reference = _Recorder(), _Recorder()
    run(function, model, window, signature="backward_window(model, window)")
    if not model.exchanges:
        raise Wrong("gave no forward pass, expected one per micro-batch: call model(inputs)")
    because = "DDP decides in the forward pass whether the coming backward exchanges gradients"
    expect_equal(sum(model.exchanges), 1, because)
    if not model.exchanges[-1]:
        raise Wrong("gave an exchange before the last micro-batch, expected it at the last one")
    total = torch.stack([loss_sum(reference(inputs), labels) for inputs, labels in window]).sum()
    (expected,) = torch.autograd.grad(total / 9, reference.scale)
    if model.scale.grad is None or not torch.allclose(model.scale.grad, expected):
        raise Wrong("gave another gradient, expected that of the mean over all 9 tokens")


@exercise("2.6")
def _counters(answer: Any) -> None:
    updates = gradient_syncs(6400, 32, no_sync=True)
    exchanges = {  # multiples of all gradients in fp32
        "as the settings say": updates,
        "the forward pass is outside no_sync": gradient_syncs(6400, 32, no_sync=False),
        "bf16 gradients": updates / 2,
        "accumulation 4": gradient_syncs(6400, 4, no_sync=True),
        "most updates without an exchange": updates / 8,
    }
    causes: dict[str, tuple[object, str]] = {}
    for name, counted in _COUNTED_BYTES.items():
        times = counted / (4 * GPT2)
        cause = min(exchanges, key=lambda one: abs(exchanges[one] - times))
        causes[name] = (cause, f"that is {times:.0f} times the fp32 gradients")
    wants = "one of " + ", ".join(map(repr, exchanges))
    expect_entries(answer, causes, "a dict with a cause for each run", each=wants)


_COUNTED_BYTES = {"A": 3.186e12, "B": 99.55e9, "C": 49.78e9, "D": 12.44e9, "E": 796.4e9}


@exercise("2.7")
def _noise(answer: Any) -> None:
    critical = noise_scale(small=32, square_small=5.0, big=256, square_big=2.0)
    signal = 5.0 / (1 + critical / 32)
    expect_equal(
        answer,
        [
            signal * (1 + critical / 1024),
            critical,
            batch_cost(1024, critical_batch=critical).samples,
        ],
        "tr Σ is 110 and |G|² 1.57, so that batch 256 is beyond the critical batch already: more "
        "samples take away noise of which little is left",
        wants="three numbers: squared length, critical batch, ratio of samples",
        rel=5e-3,
    )


@exercise("2.8")
def _two_sweeps(answer: Any) -> None:
    wants = "a letter, a rate, a batch and a rate"
    expect_parts(answer, 4, wants)
    expect_choice(answer[0], "X", "2.24 is √5, the root rule for 5 times the batch", ("X", "Y"))
    critical = 1920.0
    largest = scaled_learning_rate(0.05, 128, 5760, rule="linear", critical_batch=critical)
    expect_numbers(
        answer[1:],
        wants,
        (scaled_learning_rate(0.04, 128, 8, rule="sqrt"), "a quarter, √(8/128)"),
        (critical, "0.05 · (1 + B/128) = 0.2 · (1 + B/640) holds for this B"),
        (largest, "the largest rate is 0.8, over 1 + 1920/5760"),
        rel=5e-3,
    )


@exercise("2.9")
def _large_batches(answer: Any) -> None:
    small, large = (batch_cost(batch, critical_batch=2e6) for batch in (0.5e6, 16e6))
    trillions = 1.25 / small.samples * large.samples
    expect_numbers(
        answer,
        "three numbers: trillion tokens, updates and a ratio",
        (trillions, "the fewest are 1 trillion; 16M is 8 critical batches: 1 + 8 times as many"),
        (round(trillions * 1e12 / 16e6), "tokens over the batch"),
        (small.steps / large.steps, "updates fall from 2.5 million to 562,500"),
        rel=5e-3,
    )


BUILDS = (builds.ACCUMULATION,)
