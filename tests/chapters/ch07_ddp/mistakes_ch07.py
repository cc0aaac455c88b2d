"""Answers to chapter 7 that a check must refuse: (exercise, what was thought, answer)."""

from torch import nn

_VIEW = "gradient_as_bucket_view=True"
_CHANGE = {
    "A": "smaller buckets",
    "B": "larger buckets",
    "C": "more tokens per GPU",
    "D": "nothing",
    "E": "no_sync",
}
_HIDES = {
    "64 GPUs": True,
    "256 GPUs": False,
    "128 GPUs, gradients in bf16": True,
    "128 GPUs, 2 micro-batches and no_sync": False,
    "512 GPUs, a batch of 32M tokens": True,
    "256 GPUs, a model twice as large": False,
}
_MOMENTS, _MEAN = "AdamW's second moments", "BatchNorm's running mean"
_RANDOM = "the state of dropout's random generator"
_EQUAL = {
    "the weights": True,
    "their gradients": True,
    _MOMENTS: True,
    "the norm of the gradient": True,
    "the loss": False,
    _MEAN: False,
    _RANDOM: False,
}
_AVERAGED = "SGD with the own gradient, then all-reduce the mean of the weights"
_ADAMW = "AdamW with the own gradient, then all-reduce the mean of the weights"
_SECOND = "all-reduce the mean gradient in every second step only, SGD"
_START = "different random weights at the start, all-reduce the mean gradient, SGD"
_PROGRAMS = {
    "all-reduce the mean gradient, SGD": "as one GPU",
    _SECOND: "drift",
    "all-reduce the sum of the gradients, SGD, the learning rate of one GPU": "equal",
    _AVERAGED: "as one GPU",
    _ADAMW: "equal",
    "clip the own gradient by its norm, then all-reduce the mean, SGD": "equal",
    _START: "drift",
    "add the mean gradient to the weights, without an optimizer": "equal",
}


def _hides(more):
    return _HIDES | {more: True}


def _branches(forward):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x, both):
            x = self.always(x)
            y = self.sometimes(x)
            return y if both else forward(x, y)

    return Branches


class _AsGiven(_branches(None)):
    def forward(self, x, both):
        x = self.always(x)
        return self.sometimes(x) if both else x


def _no_queue(ready, travel):
    return max(a + b for a, b in zip(ready, travel, strict=True)) - ready[-1]


MISTAKES = [
    ("7.1", "no second copy", (36.92, 36.92, _VIEW)),
    ("7.1", "smaller buckets are less memory", (36.92, 43.15, "bucket_cap_mb=1")),
    ("7.1", "the states only", (24.92, 31.15, _VIEW)),
    ("7.2", "always larger buckets", dict.fromkeys(_CHANGE, "larger buckets")),
    ("7.2", "every tail is a fault", _CHANGE | {"C": "nothing", "D": "more tokens per GPU"}),
    ("7.3", "every second step is enough", _PROGRAMS | {_SECOND: "equal"}),
    ("7.3", "averaged weights are another training", _PROGRAMS | {_AVERAGED: "equal"}),
    ("7.3", "AdamW is linear as well", _PROGRAMS | {_ADAMW: "as one GPU"}),
    ("7.3", "equal updates make equal weights", _PROGRAMS | {_START: "equal"}),
    ("7.4", "one way through the ring", (15890, _HIDES)),
    (
        "7.4",
        "no_sync hides more",
        (31780, _hides("128 GPUs, 2 micro-batches and no_sync")),
    ),
    (
        "7.4",
        "larger models hide more",
        (31780, _hides("256 GPUs, a model twice as large")),
    ),
    ("7.4", "as many GPUs as samples", (31780, dict.fromkeys(_HIDES, True))),
    ("7.5", "lateness adds up over ranks", (400.8, 502.4, "half as long")),
    ("7.5", "each rank waits for itself alone", (400.1, 400.1, "half as long")),
    ("7.5", "both halve the expected delay", (400.8, 464.1, "half as often")),
    ("7.6", "five buckets from the first pass on", (100, 400, 120)),
    ("7.6", "finds unused ones, and rebuilds", (96, 396, 1 + 19 * 5 + 20)),
    ("7.6", "no_sync is the default", (96, 96, 120)),
    ("7.6", "25 MiB for the first one too", (1 + 19 * 4, 1 + 79 * 4, 100)),
    ("7.7", "zero, but not its gradient", _branches(lambda x, y: x + y - y.detach())),
    ("7.7", "as given", _AsGiven),
    ("7.7", "always both", _branches(lambda _, y: y)),
    ("7.7", "out of the graph", _branches(lambda x, y: x + 0 * y.detach())),
    ("7.8", "the link carries all at once", _no_queue),
    ("7.8", "no overlap", lambda _, travel: sum(travel)),
    ("7.8", "the link never waits", lambda ready, travel: ready[0] + sum(travel) - ready[-1]),
    ("7.9", "DDP makes all equal", (dict.fromkeys(_EQUAL, True), _RANDOM)),
    ("7.9", "buffers are rank 0's at any time", (_EQUAL | {_MEAN: True}, _RANDOM)),
    ("7.9", "each has moments of its own", (_EQUAL | {_MOMENTS: False}, _RANDOM)),
    ("7.9", "rank 1's buffers are lost", (_EQUAL, _MEAN)),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("7.5", "in seconds", ("0.4008 s", "0.4641 s", "Half as long")),
    ("7.1", "rounded", (36.9, 43.2, "Gradient_as_bucket_view=True")),
    ("7.4", "0 and 1", (31780, {job: int(hidden) for job, hidden in _HIDES.items()})),
]
