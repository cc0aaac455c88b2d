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


def _orders(set_epoch: Callable[[Any, int], object], split: bool = True):
    def orders(samples, world, rank, epochs):
        from torch.utils.data.distributed import DistributedSampler

        replicas = {"num_replicas": world if split else 1, "rank": rank if split else 0}
        sampler = DistributedSampler(range(samples), seed=0, **replicas)
        seen = []
        for epoch in range(epochs):
            set_epoch(sampler, epoch)
            seen.append(list(sampler))
        return seen

    return orders


MISTAKES = [
    ("1.1", "rounds down", (390, 128)),
    ("1.1", "forgets that the last batch is short", (391, 128)),
    ("1.1", "does not round", (50_000 / 128, 80)),
    ("1.2", "counts micro-steps", 600),
    ("1.2", "one epoch only", 100),
    ("1.2", "counts samples", 3000),
    ("1.3", "the notes' formula", _pure_dp),
    ("1.3", "forgets context parallelism", _forgets_cp),
    ("1.3", "rounds an impossible world down", _never_refuses),
    ("1.3", "a number instead of a function", 64),
    ("1.4", "contiguous shares", _contiguous),
    ("1.4", "leaves ranks with fewer samples", _no_repeat),
    ("1.5", "no set_epoch", _orders(lambda sampler, epoch: None)),
    ("1.5", "the same epoch each time", _orders(lambda sampler, epoch: sampler.set_epoch(1))),
    (
        "1.5",
        "every rank sees everything",
        _orders(lambda sampler, epoch: sampler.set_epoch(epoch), split=False),
    ),
    ("1.6", "drops only at the end", ([32, 8, 1], [31, 7, 11])),
    ("1.6", "repeats nothing", ([32, 8, 0], [28, 7, 107])),
    ("1.6", "one list only", [32, 8, 1]),
    ("1.7", "forgets the sequence length", (16384, 16384 / 4_194_304)),
    ("1.7", "ratio upside down", (67_108_864, 1 / 16)),
    ("1.8", "takes the claim at its word", (1024, 1024)),
    ("1.8", "divides instead of multiplying", (1024, 32)),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("1.7", "rounded tokens", (67.1e6, 16)),
]
