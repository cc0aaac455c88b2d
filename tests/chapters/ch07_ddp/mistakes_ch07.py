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
_LEFT_OUT = "what PowerSGD has left out"
_EQUAL = {
    "the weights": True,
    "their gradients": True,
    _MOMENTS: True,
    "the norm of the gradient": True,
    "the loss": False,
    _MEAN: False,
    _LEFT_OUT: False,
}


def _hides(more):
    return _HIDES | {more: True}


def _train(change, every=1):
    def replicas(weight, gradients, learning_rate):
        weights = [weight] * len(gradients[0])
        for step, found in enumerate(gradients, start=1):
            for rank, own in enumerate(found):
                shared = change(found)
                gradient = shared if step % every == 0 else own
                weights[rank] -= learning_rate * gradient
        return weights

    return replicas


def _adds_the_mean(weight, gradients, learning_rate):
    change = sum(sum(found) / len(found) for found in gradients)
    return [weight + change] * len(gradients[0])


def _fill(full=lambda held, limit: held >= limit, rest=True, one_limit=False):
    def fill(sizes, cap, first):
        buckets, held = [], 0
        for size in sizes:
            held += size
            if full(held, cap if buckets or one_limit else first):
                buckets.append(held)
                held = 0
        return [*buckets, held] if held and rest else buckets

    return fill


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
    ("7.3", "sums", _train(sum)),
    ("7.3", "every second step", _train(lambda found: sum(found) / len(found), every=2)),
    ("7.3", "the gradient is the change", _adds_the_mean),
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
    ("7.5", "more than the limit", _fill(lambda held, limit: held > limit)),
    ("7.5", "loses the last bucket", _fill(rest=False)),
    ("7.5", "one limit for all", _fill(one_limit=True)),
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
    ("7.9", "DDP makes all equal", (dict.fromkeys(_EQUAL, True), _LEFT_OUT)),
    ("7.9", "buffers are rank 0's at any time", (_EQUAL | {_MEAN: True}, _LEFT_OUT)),
    ("7.9", "each has moments of its own", (_EQUAL | {_MOMENTS: False}, _LEFT_OUT)),
    ("7.9", "rank 1's buffers are lost", (_EQUAL, _MEAN)),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("7.1", "rounded", (36.9, 43.2, "Gradient_as_bucket_view=True")),
    ("7.4", "0 and 1", (31780, {job: int(hidden) for job, hidden in _HIDES.items()})),
]
