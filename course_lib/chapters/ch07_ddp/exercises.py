"""Exercises and quiz of chapter 7, from DP to DDP."""

from typing import Any

from course_lib.chapters.ch07_ddp import builds
from course_lib.checking import (
    Wrong,
    exercise,
    expect_calls,
    expect_choice,
    expect_entries,
    expect_number,
    expect_numbers,
    expect_parts,
    run,
)
from course_lib.checking.helpers import described
from course_lib.theory.inputs import RECIPES, Job, Layout
from course_lib.theory.inputs.hardware import HDR, NDR, Link
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import MIB
from course_lib.theory.memory.peak import memory_moments
from course_lib.theory.network.bucket_timeline import (
    Gradient,
    ddp_all_reduces,
    ddp_buckets,
    ddp_timeline,
    gradient_syncs,
    hiding_tokens,
)
from course_lib.theory.network.collectives import steps

_REMEDIES = (
    "bucket_cap_mb=1",
    "gradient_as_bucket_view=True",
    "find_unused_parameters=True",
    "more GPUs",
)


@exercise("7.1")
def _dies_on_two(answer: Any) -> None:
    expect_parts(answer, 3, "GB on one GPU, GB on each of two, and a remedy")
    reasons = {
        1: "weights, gradients and two numbers of AdamW are 16 bytes a parameter, and 12 GB more",
        2: "DDP's buckets are a second copy of all gradients, 4 bytes a parameter",
    }
    for (gpus, because), gb in zip(reasons.items(), answer, strict=False):
        bill = memory_moments(Job(MODELS["gpt2-1.5b"], RECIPES["fp32-16"], Layout(dp=gpus)))["loss"]
        held = bill.model_states_bytes + bill.bucket_bytes
        expect_number(gb, held / 1e9 + 12, because, rel=5e-3, unit="GB")
    because = "`.grad` is then a view into the bucket; other limits cut the same bytes differently"
    expect_choice(answer[2], _REMEDIES[1], because, choices=_REMEDIES)


_LATENCY_MS = 1000 * 13 * steps("all-reduce", 1024) * HDR.latency_s
_TRACES = {
    "A": ("smaller buckets", "nothing is sent before backward has ended"),
    "B": ("larger buckets", f"the steps of its buckets take {_LATENCY_MS:.0f} ms of latency"),
    "C": ("more tokens per GPU", "the link needs longer than the whole backward pass"),
    "D": ("nothing", "only the last bucket, with the embedding, comes after backward"),
    "E": ("no_sync", "each micro-batch exchanges; one exchange in an update is enough"),
}


@exercise("7.2")
def _traces(answer: Any) -> None:
    each = ", ".join(repr(change) for change, _ in _TRACES.values())
    expect_entries(answer, _TRACES, "a dict with a change for each run", each=f"one of {each}")


_PROGRAMS = {
    "all-reduce the mean gradient, SGD": ("as one GPU", "this is data parallelism"),
    "all-reduce the mean gradient in every second step only, SGD": (
        "drift",
        "in every other step each rank makes an update of its own",
    ),
    "all-reduce the sum of the gradients, SGD, the learning rate of one GPU": (
        "equal",
        "both take the same sum, which is twice the mean",
    ),
    "SGD with the own gradient, then all-reduce the mean of the weights": (
        "as one GPU",
        "SGD is linear: the mean of both updates is the update with the mean gradient",
    ),
    "AdamW with the own gradient, then all-reduce the mean of the weights": (
        "equal",
        "the weights are averaged, but each rank divided by second moments of its own",
    ),
    "clip the own gradient by its norm, then all-reduce the mean, SGD": (
        "equal",
        "both take the same mean, of gradients that were scaled differently",
    ),
    "different random weights at the start, all-reduce the mean gradient, SGD": (
        "drift",
        "equal updates keep the difference that was there at the start",
    ),
    "add the mean gradient to the weights, without an optimizer": (
        "equal",
        "both go uphill together",
    ),
}


@exercise("7.3")
def _periodically(answer: Any) -> None:
    each = "'as one GPU', 'equal' or 'drift'"
    expect_entries(answer, _PROGRAMS, "a dict with a verdict for each program", each=each)


@exercise("7.4")
def _hides(answer: Any) -> None:
    expect_parts(answer, 2, "a number of tokens, and a dict of True and False")
    # The limit of many ranks: 2(n-1)/n is 2, twice that of two ranks.
    fp32, bf16 = (2 * hiding_tokens(794.5e12, NDR.bytes_per_s, 2, size) for size in (4, 2))
    because = "4NT/F = 2 · 4N/β gives T = 2F/β"
    expect_number(answer[0], fp32, because, rel=1e-3, unit="tokens")
    batch = 2**22
    expected = {
        "64 GPUs": (batch / 64 > fp32, "each has 65,536 tokens"),
        "256 GPUs": (batch / 256 > fp32, "each has 16,384 tokens"),
        "128 GPUs, gradients in bf16": (batch / 128 > bf16, "half of the bytes need half of T"),
        "128 GPUs, 2 micro-batches and no_sync": (
            batch / 128 / 2 > fp32,
            "only the last backward pass exchanges, and it sees 16,384 tokens",
        ),
        "512 GPUs, a batch of 32M tokens": (8 * batch / 512 > fp32, "each has 65,536 tokens"),
        "256 GPUs, a model twice as large": (
            batch / 256 > fp32,
            "computing and bytes double, so the size cancels",
        ),
    }
    expect_entries(answer[1], expected, "a dict of True and False", each="True or False")


@exercise("7.5")
def _stragglers(answer: Any) -> None:
    expect_parts(answer, 3, "ms on 8 ranks, ms on 1024, and a choice")

    def mean_ms(ranks: int, late: float = 1e-3, delay: float = 100) -> float:
        return 400 + delay * (1 - (1 - late) ** ranks)

    for got, ranks in zip(answer, (8, 1024), strict=False):
        because = f"no rank is late in {0.999**ranks:.1%} of the steps"
        expect_number(got, mean_ms(ranks), because, rel=1e-3, unit="ms")
    often, long = mean_ms(1024, late=5e-4), mean_ms(1024, delay=50)
    because = f"half as often: {often:.0f} ms, half as long: {long:.0f} ms"
    choices = ("half as often", "half as long")
    expect_choice(answer[2], choices[long < often], because, choices=choices)


@exercise("7.6")
def _how_many(answer: Any) -> None:
    buckets = len(ddp_buckets([8 * MIB] * 16))
    once, always = (gradient_syncs(80, 4, no_sync) for no_sync in (True, False))
    marks = "five buckets from the first pass on, and the marks, 20 times"
    expect_numbers(
        answer,
        "three whole numbers",
        (ddp_all_reduces(once, buckets), "one bucket at first, then 19 exchanges of five", 0, ""),
        (ddp_all_reduces(always, buckets), "each of the 80 backward passes exchanges", 0, ""),
        (once * (buckets + 1), marks, 0, ""),
    )


@exercise("7.7")
def _hang(answer: Any) -> None:
    import torch

    if not (isinstance(answer, type) and issubclass(answer, torch.nn.Module)):
        raise Wrong(f"wants the class Branches, an nn.Module, got {described(answer)}")
    torch.manual_seed(0)
    model, x = run(answer), torch.randn(2, 3)
    if {name for name, _ in model.named_children()} != {"always", "sometimes"}:
        raise Wrong("has other layers, expected `always` and `sometimes` as they were")
    for both in (True, False):
        model.zero_grad(set_to_none=True)
        expected = model.always(x)
        expected = model.sometimes(expected) if both else expected
        output = model(x, both)
        alike = isinstance(output, torch.Tensor) and output.shape == expected.shape
        if not alike or not torch.allclose(output, expected):
            raise Wrong(f"gave another output for both={both}, expected that of the old module")
        if output.requires_grad:
            output.sum().backward()
        unused = [name for name, p in model.named_parameters() if p.grad is None]
        if unused:
            raise Wrong(
                f"gave no gradient to {', '.join(unused)} for both={both}, expected one, zero or "
                "not, because a bucket waits for it"
            )
        if not both and any(p.grad.abs().sum() for p in model.sometimes.parameters()):
            raise Wrong("gave `sometimes` a gradient for both=False, expected 0")


@exercise("7.8")
def _exposed(function: Any) -> None:
    calls = {
        ((5, 10, 15), (10, 10, 10)): "the link is the bottleneck: 5 + 30 - 15",
        ((15,), (30,)): "one bucket hides nothing",
        ((5, 10, 15), (1, 1, 1)): "only the last one is exposed",
        ((1, 2, 10), (5, 5, 1)): "the link waits for a bucket that is not full",
        ((10, 11), (1, 20)): "the last bucket is the large one",
    }
    cases = []
    for (ready, travel), because in calls.items():
        # By theory: gradients of `travel` bytes become ready at `ready`, and the link moves 1 B/s.
        waits = (now - before for before, now in zip((0, *ready), ready, strict=False))
        sizes = [Gradient("", size, wait) for size, wait in zip(travel, waits, strict=True)]
        line = ddp_timeline(sizes, 2, Link("1 B/s", 1.0), cap_bytes=1, first_bytes=1)
        cases.append(((list(ready), list(travel)), line.exposed_s, because))
    expect_calls(function, cases, signature="exposed(ready, travel)", rel=1e-9)


_BOTH_HAVE = {
    "the weights": (True, "they began equal, and every update was the same"),
    "their gradients": (True, "the all-reduce gives all ranks the same mean"),
    "AdamW's second moments": (True, "equal gradients, so equal moments"),
    "the norm of the gradient": (True, "of equal gradients, so all clip alike"),
    "the loss": (False, "it is the mean of a rank's own samples"),
    "BatchNorm's running mean": (
        False,
        "rank 0's was broadcast before the forward pass, which moved it by a rank's own samples",
    ),
    "the state of dropout's random generator": (False, "each rank was seeded with its own number"),
}


@exercise("7.9")
def _equal(answer: Any) -> None:
    expect_parts(answer, 2, "a dict of True and False, and one of its keys")
    expect_entries(answer[0], _BOTH_HAVE, "a dict of True and False", each="True or False")
    because = "it is not in the file, while the next forward pass broadcasts rank 0's running mean"
    lost = "the state of dropout's random generator"
    expect_choice(answer[1], lost, because, choices=tuple(_BOTH_HAVE))


BUILDS = (builds.DDP,)
