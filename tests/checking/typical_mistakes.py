"""Answers that learners give and a check must refuse: (exercise, what was thought, answer)."""

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


CHAPTER_1 = [
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


def _train_without(*missing: str):
    """The right loop of exercise 2.3, less what is named."""

    def train(model, optimizer, batches, accumulation):
        for start in range(0, len(batches), accumulation):
            window = batches[start : start + accumulation]
            if "tail" in missing and len(window) < accumulation:
                return
            samples = sum(len(inputs) for inputs, _ in window)
            if "zero_grad" not in missing:
                optimizer.zero_grad()
            for inputs, targets in window:
                squares = (model(inputs) - targets).square()
                loss = squares.sum() / samples
                if "division" in missing:
                    loss = squares.mean()
                if "tokens" in missing:
                    loss = squares.mean() / len(window)
                loss.backward()
            optimizer.step()

    return train


def _no_sync_around(what: str):
    def backward_window(model, window):
        from contextlib import nullcontext

        from course_lib.scratch.accumulation import loss_sum

        tokens = sum(labels.numel() for _, labels in window)
        for number, (inputs, labels) in enumerate(window, start=1):
            quiet = number < len(window) if what != "first" else number > 1
            context = model.no_sync() if quiet or what == "all" else nullcontext()
            if what == "backward":
                loss = loss_sum(model(inputs), labels) / tokens
                with context:
                    loss.backward()
            else:
                with context:
                    scale = 1 if what == "undivided" else tokens
                    (loss_sum(model(inputs), labels) / scale).backward()

    return backward_window


CHAPTER_2 = [
    ("2.1", "forgets the second node", (32, 1000)),
    ("2.1", "exchanges in each micro-step", (16, 16000)),
    ("2.2", "takes the claim at its word", ([200, 200], [100, 100])),
    ("2.2", "doubles the passes", ([200, 200], [400, 200])),
    ("2.3", "does not clear the gradients", _train_without("zero_grad")),
    ("2.3", "does not divide", _train_without("division")),
    ("2.3", "divides by micro-batches", _train_without("tokens")),
    ("2.3", "drops the last window", _train_without("tail")),
    ("2.3", "a function that trains nothing", lambda *arguments: True),
    ("2.4", "mean of the means", lambda means, tokens: sum(means) / len(means)),
    (
        "2.4",
        "NaN from padding",
        lambda means, tokens: sum(m * n for m, n in zip(means, tokens, strict=True)) / sum(tokens),
    ),
    ("2.5", "around backward only", _no_sync_around("backward")),
    ("2.5", "around everything", _no_sync_around("all")),
    ("2.5", "exchanges at the first", _no_sync_around("first")),
    ("2.5", "does not divide", _no_sync_around("undivided")),
    ("2.6", "forgets the bytes of a number", (6400 * 124_439_808, 200 * 124_439_808)),
    ("2.6", "upside down", (200 * 4 * 124_439_808, 6400 * 4 * 124_439_808)),
    ("2.7", "variance as 1/√B", (0.08 / 4, 4.0)),
    ("2.7", "factor of the variance", (0.005, 16.0)),
    ("2.8", "linear for both", (0.05, 0.0000375)),
    ("2.8", "the wrong direction", (12.8, 0.0024)),
    ("2.9", "samples and updates exchanged", ([9.0, 1.125], [1.125, 9.0])),
    ("2.9", "one batch only", [1.125, 9.0]),
]


def _per_parameter(master=True, buffer=True, refuse=True):
    """The right function of exercise 3.4, less what is switched off."""

    def bytes_per_parameter(weights, gradients, fp32_buffer=False):
        size = {"fp32": 4, "bf16": 2}
        if refuse and weights not in size:
            raise ValueError(weights)
        copy = 4 if weights == "bf16" or not master else 0
        extra = 4 if fp32_buffer and (gradients == "bf16" or not buffer) else 0
        return size.get(weights, 2) + size[gradients] + copy + extra + 8

    return bytes_per_parameter


def _state_bytes(step: bool, size: int | None = None):
    def optimizer_bytes(optimizer):
        import torch

        return sum(
            value.numel() * size if size else value.nbytes
            for state in optimizer.state.values()
            for name, value in state.items()
            if torch.is_tensor(value) and (step or name != "step")
        )

    return optimizer_bytes


P70 = 68_976_648_192
_SORTED = {
    "gradient of a weight": 2,
    "running mean of the squared gradient": 3,
    "fp32 master copy": 3,
    "output of GELU, kept for backward": 5,
    "gradient of the logits, freed at once": 6,
    "CUDA context": 7,
}

CHAPTER_3 = [
    ("3.1", "takes 12 bytes for Adam", (2 * P70, 12 * P70, 0)),
    ("3.1", "nominal 70e9", (140e9, 560e9, 280e9)),
    ("3.2", "twice, always", (2, 2, 2)),
    ("3.2", "forgets the master copy", (2, 4, 4)),
    ("3.3", "SGD keeps the weights", (28_000_000_000, 28e9, 56e9, 14e9, 1.0)),
    ("3.3", "8-bit is half of bf16 weights", (0, 28e9, 56e9, 14e9, 0.5)),
    ("3.4", "master copy for fp32 weights", _per_parameter(master=False)),
    ("3.4", "two fp32 gradients", _per_parameter(buffer=False)),
    ("3.4", "accepts anything", _per_parameter(refuse=False)),
    ("3.5", "counts the steps", _state_bytes(step=True)),
    ("3.5", "counts numbers, not bytes", _state_bytes(step=False, size=1)),
    ("3.5", "a number", 320),
    ("3.6", "reads GiB as GB", (23.65 - 24.92, "no")),
    ("3.6", "forgets the overhead", (0.44, "yes")),
    ("3.7", "takes MiB for MB", (143.771, 140.4)),
    ("3.7", "the same for both", (140.4, 140.4)),
    ("3.8", "compares with the weights", 2),
    ("3.8", "rounds down", 6),
    ("3.9", "gradients are intermediate", {**_SORTED, "gradient of a weight": 5}),
    ("3.9", "variance is a gradient", {**_SORTED, "running mean of the squared gradient": 2}),
    ("3.9", "forgets one", {k: v for k, v in _SORTED.items() if k != "CUDA context"}),
    ("3.10", "takes the claim at its word", "functional language"),
    ("3.10", "another word", "fusion"),
]
ALL = CHAPTER_1 + CHAPTER_2 + CHAPTER_3
