"""Answers to chapter 1 that a check must refuse: (exercise, what was thought, answer)."""

from collections.abc import Callable
from typing import Any


def _pure_dp(micro_batch, accumulation, nodes, gpus, tp=1, pp=1, cp=1):
    return micro_batch * accumulation * nodes * gpus


def _forgets_cp(micro_batch, accumulation, nodes, gpus, tp=1, pp=1, cp=1):
    if nodes * gpus % (tp * pp):
        raise ValueError
    return micro_batch * accumulation * nodes * gpus // (tp * pp)


def _never_refuses(micro_batch, accumulation, nodes, gpus, tp=1, pp=1, cp=1):
    return micro_batch * accumulation * nodes * gpus // (tp * pp * cp)


def _contiguous(samples, world, rank):
    share = samples // world
    return list(range(rank * share, (rank + 1) * share))


def _no_repeat(samples, world, rank):
    return list(range(rank, samples, world))


def _orders(set_epoch: Callable[[Any, int], object], split: bool = True, seed: int = 0):
    def orders(samples, world, rank, epochs, first=0):
        from torch.utils.data.distributed import DistributedSampler

        replicas = {"num_replicas": world if split else 1, "rank": rank if split else 0}
        sampler = DistributedSampler(range(samples), seed=seed * rank, **replicas)
        seen = []
        for epoch in range(first, first + epochs):
            set_epoch(sampler, epoch)
            seen.append(list(sampler))
        return seen

    return orders


def _from_zero(samples, world, rank, epochs, first=0):
    return _orders(lambda sampler, epoch: sampler.set_epoch(epoch))(samples, world, rank, epochs)


def _tokens_slider(observes=True, begins=True, ranks=4):
    def tokens_slider(sequence):
        from ipywidgets import HTML, IntSlider

        slider, text = IntSlider(value=1, min=1, max=16), HTML()

        def show(change=None):
            text.value = f"{2 * slider.value * ranks * sequence:,} tokens"

        if observes:
            slider.observe(show, names="value")
        if begins:
            show()
        return slider, text

    return tokens_slider


_NO_FIT = "tp 1, pp 1, cp 2, micro-batch 1, accumulation 1"
_SETTINGS = {
    _NO_FIT: "does not fit",
    "tp 8, pp 4, micro-batch 2, accumulation 8": "LLaMA-2's batch",
    "tp 8, pp 8, micro-batch 4, accumulation 8": "LLaMA-2's batch",
    "tp 8, pp 8, micro-batch 1, accumulation 16": "another batch",
    "tp 8, pp 1, micro-batch 4, accumulation 1": "LLaMA-2's batch",
    "tp 8, pp 4, cp 2, micro-batch 2, accumulation 8": "another batch",
}
_RUNS = {
    "A": "the ranks shuffle with different seeds",
    "B": "set_epoch is missing",
    "C": "every rank has all samples",
    "D": "nothing",
}

MISTAKES = [
    ("1.1", "the first log alone", (961, 976)),
    ("1.1", "60 full batches are 60 iterations", (960, 974)),
    ("1.1", "39 full batches are 38 iterations", (961, 975)),
    ("1.2", "counts micro-steps", (2814, 500 / 2814, 2814 / 11_250)),
    ("1.2", "the last window is part of an update", (703.125, 0.71, 0.0625)),
    ("1.3", "the notes' formula", _pure_dp),
    ("1.3", "forgets context parallelism", _forgets_cp),
    ("1.3", "rounds an impossible world down", _never_refuses),
    ("1.4", "contiguous shares", _contiguous),
    ("1.4", "leaves ranks with fewer samples", _no_repeat),
    ("1.5", "no set_epoch", _orders(lambda sampler, epoch: None)),
    (
        "1.5",
        "every rank sees everything",
        _orders(lambda sampler, epoch: sampler.set_epoch(epoch), split=False),
    ),
    ("1.5", "a seed for each rank", _orders(lambda s, epoch: s.set_epoch(epoch), seed=1)),
    ("1.5", "counts from 0 after a break", _from_zero),
    ("1.6", "drops only at the end", ([32, 8, 1], [31, 7, 11])),
    ("1.6", "repeats nothing", ([32, 8, 0], [28, 7, 107])),
    ("1.6", "one list only", [32, 8, 1]),
    ("1.7", "context parallelism divides weights", {**_SETTINGS, _NO_FIT: "LLaMA-2's batch"}),
    (
        "1.7",
        "forgets cp",
        {**_SETTINGS, "tp 8, pp 4, cp 2, micro-batch 2, accumulation 8": "LLaMA-2's batch"},
    ),
    ("1.8", "takes a repeated sample for a fault", {**_RUNS, "D": _RUNS["A"]}),
    ("1.8", "forgets one", {name: fault for name, fault in _RUNS.items() if name != "A"}),
    ("1.9", "never observes", _tokens_slider(observes=False)),
    ("1.9", "says nothing until it is moved", _tokens_slider(begins=False)),
    ("1.9", "forgets the ranks", _tokens_slider(ranks=1)),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("1.2", "rounded, and in percent", (705, "70.9 %", "6.27 %")),
    ("1.9", "with commas", _tokens_slider()),
]
