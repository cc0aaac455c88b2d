"""Answers to chapter 12 that a check must refuse: (exercise, what was thought, answer)."""

import math

import torch

_TOTAL_8X7 = 46_702_792_704
_SUM = "the sum of the gradients of its attention"
_TOKENS = "etp 1: the all-to-all of its tokens"
_SHARED = {
    "tp: the matrices of its attention": [6, 7],
    "cp: its sequences": [4, 6],
    _SUM: [0, 2, 4, 6, 8, 10, 12, 14],
    _TOKENS: [4, 5, 6, 7],
    "etp 1: the sum of its experts' gradients": [2, 6, 10, 14],
    "etp 2: the all-to-all of its tokens": [0, 2, 4, 6],
    "etp 2: the sum of its experts' gradients": [6, 14],
}
_ROW = 2 * 4096


def _balance(scale=True, tokens=False, detach=False, probabilities_twice=False):
    def balance_loss(chosen, probabilities):
        count = probabilities.shape[1]
        share = torch.bincount(chosen.flatten(), minlength=count)
        share = share / (len(chosen) if tokens else chosen.numel())
        mean = probabilities.mean(0)
        if probabilities_twice:
            share = mean
        loss = (count if scale else 1) * (share * mean).sum()
        return loss.detach() if detach else loss

    return balance_loss


def _merge(top):
    """Both, weighted relative to `top`; the log-sum-exp is what is left of it by mistake."""

    def merge(a, b):
        highest = top(a[1], b[1])
        one, other = math.exp(a[1] - highest), math.exp(b[1] - highest)
        return (one * a[0] + other * b[0]) / (one + other), highest or math.log(one + other)

    return merge


MISTAKES = [
    ("12.1", "everything is spread", (_TOTAL_8X7 / 8, 2, 2 * _TOTAL_8X7, 64.0e9)),
    ("12.1", "experts are sharded over all", (7_242_780_672, 16, 115.9e9, 34.4e9)),
    ("12.1", "ZeRO-1 shards all states", (7_242_780_672, 2, 115.9e9, 115.9e9 / 16)),
    ("12.2", "the report", (6.28, 8)),
    ("12.2", "the right MFU only", (0.3514, 8)),
    ("12.2", "rounded down", (0.3514, 134)),
    ("12.3", "sums over dp alone", _SHARED | {_SUM: [2, 6, 10, 14]}),
    ("12.3", "sums over everybody", _SHARED | {_SUM: list(range(16))}),
    ("12.3", "experts are where attention is", _SHARED | {_TOKENS: [0, 2, 4, 6]}),
    ("12.4", "nothing is dropped", (0.0, 1.0)),
    ("12.4", "kept instead of dropped", (0.6855, 3.0)),
    ("12.4", "only the busiest expert's excess", (0.2117, 3.0)),
    ("12.5", "forgets the number of experts", _balance(scale=False)),
    ("12.5", "divides by tokens", _balance(tokens=True)),
    ("12.5", "no gradient", _balance(detach=True)),
    ("12.5", "no counts at all", _balance(probabilities_twice=True)),
    ("12.6", "as it was", lambda p: p / p.sum(1, keepdim=True)),
    ("12.6", "never normalised", lambda p: p),
    ("12.6", "detached", lambda p: p.detach() if p.shape[1] == 1 else p / p.sum(1, keepdim=True)),
    ("12.7", "combine gives back what was sent", (2000 * _ROW, 2000 * _ROW, 8000 * _ROW)),
    ("12.7", "only what leaves", (1000 * _ROW, 1100 * _ROW, 4200 * _ROW)),
    ("12.7", "forward only", (2000 * _ROW, 2100 * _ROW, 4100 * _ROW)),
    ("12.8", "mean of the means", lambda a, b: ((a[0] + b[0]) / 2, math.log(2) + max(a[1], b[1]))),
    ("12.8", "overflows", _merge(lambda *_: 0)),
    ("12.8", "keeps the larger log-sum-exp", _merge(max)),
    ("12.9", "slices in order, or no mask", (16, 4, 128, 1.939)),
    ("12.9", "the same wire", (8, 2, 8, 1.882)),
    ("12.9", "the other way round", (8, 32, 64, 1.882)),
    ("12.9", "the limit of many ranks", (8, 2, 64, 2.0)),
    ("12.12", "two matrices", (1152, 858.9e9, 626.6, 4)),
    ("12.12", "forward only", (2.25 * 768 * 2 / 3, 858.9e9, 626.6, 4)),
    ("12.12", "the ridge itself", (1728, 572.6e9, 295.3, 2)),
    ("12.12", "ep rounded down", (1728, 572.6e9, 626.6, 2)),
]

OTHER_FORMS = [
    ("12.1", "with units", [7.24e9, 2, "115.9 GB", "64.0 GB"]),
    ("12.2", "in percent", ["35.1 %", 135]),
]
