"""Answers to chapter 12 that a check must refuse: (exercise, what was thought, answer)."""

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


_FAULT = {
    "A": "weights that cancel",
    "B": "no balance",
    "C": "small capacity",
    "D": "a sum of means",
}
_FEWER = {
    "LLaMA-3.1 8B, cp 2": "ring",
    "LLaMA-3.1 8B, cp 8": "all-to-all",
    "LLaMA-3.1 8B, cp 16": "ring",
    "LLaMA-3.1 8B, tp 4, cp 4": "ring",
    "LLaMA-2 7B, cp 16": "all-to-all",
}

MISTAKES = [
    ("12.6", "a bias keeps the router still", _FAULT | {"A": "biased weights"}),
    ("12.6", "drops come from imbalance", _FAULT | {"B": "small capacity", "C": "no balance"}),
    ("12.7", "always fewer by heads", (dict.fromkeys(_FEWER, "all-to-all"), 2.4)),
    (
        "12.7",
        "forgets that tp cuts heads",
        (_FEWER | {"LLaMA-3.1 8B, tp 4, cp 4": "all-to-all"}, 2.4),
    ),
    ("12.7", "keys and values only", (_FEWER, 12)),
    ("12.7", "forward only", (_FEWER, 4.8)),
    ("12.1", "everything is spread", (_TOTAL_8X7 / 8, 2, 2 * _TOTAL_8X7, 64.0e9)),
    ("12.1", "experts are sharded over all", (7_242_780_672, 16, 115.9e9, 34.4e9)),
    ("12.1", "ZeRO-1 shards all states", (7_242_780_672, 2, 115.9e9, 115.9e9 / 16)),
    ("12.2", "the report", (6.28, 8)),
    ("12.2", "the right MFU only", (0.3514, 8)),
    ("12.2", "rounded down", (0.3514, 134)),
    ("12.3", "sums over dp alone", _SHARED | {_SUM: [2, 6, 10, 14]}),
    ("12.3", "sums over everybody", _SHARED | {_SUM: list(range(16))}),
    ("12.3", "experts are where attention is", _SHARED | {_TOKENS: [0, 2, 4, 6]}),
    ("12.5", "forgets the number of experts", _balance(scale=False)),
    ("12.5", "divides by tokens", _balance(tokens=True)),
    ("12.5", "no gradient", _balance(detach=True)),
    ("12.5", "no counts at all", _balance(probabilities_twice=True)),
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
