"""Exercises and quiz of chapter 7, from DP to DDP."""

from dataclasses import replace
from typing import Any

from course_lib.checking import (
    Question,
    Wrong,
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    run,
)
from course_lib.checking.builds import ddp
from course_lib.checking.helpers import described
from course_lib.theory.inputs.hardware import NDR, Link
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import MIB
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline, hiding_tokens
from course_lib.theory.network.buckets import ddp_all_reduces, ddp_buckets, gradient_syncs
from course_lib.theory.network.collectives import seconds, sent_bytes, steps


@exercise(
    "7.1",
    kind="calculate",
    title="what travels",
    hints=("fp32: 4 bytes.", "A ring sends 2(n-1)/n of what it is given.", "7 copies."),
)
def _what_travels(answer: Any) -> None:
    given = 4 * MODELS["gpt2-124m"].parameters().total
    expect_equal(
        answer,
        [given, sent_bytes("all-reduce", given, 8), 7 * given],
        "4 bytes per parameter are given; 2(n-1)/n of them sent; DataParallel copies all weights "
        "to 7 GPUs",
        wants="three numbers of bytes",
        rel=1e-9,
    )


_WHOSE = {
    "one process drives all GPUs": ("DP", "DDP has a process for each GPU"),
    "weights are copied to the other GPUs in every step": ("DP", "DDP copies them once"),
    "each GPU computes on its own part of the batch": ("both", "that is data parallelism"),
    "gradients travel while the backward pass goes on": ("DDP", "in buckets"),
    "the outputs are gathered on the first GPU": ("DP", "a rank of DDP keeps its outputs"),
    "there is an optimizer for each GPU": ("DDP", "each process makes the same update"),
    "it runs on several nodes": ("DDP", "one process can not reach another machine's GPUs"),
}


@exercise(
    "7.2",
    kind="debug",
    title='"DDP is similar to DP"',
    hints=("The table of section 7.2.", "One of them is true of both."),
)
def _whose(answer: Any) -> None:
    wants = "a dict of 'DP', 'DDP' and 'both'"
    expect_entries(answer, _WHOSE, wants, each="'DP', 'DDP' or 'both'")


@exercise(
    "7.3",
    kind="debug",
    title='"periodically"',
    hints=("The mean, not the sum, and in every step.", "SGD: weight - learning rate · mean."),
)
def _replicas(function: Any) -> None:
    cases = [
        ((1.0, [[0.2, 0.6]], 0.1), [0.96, 0.96], "the mean 0.4, times 0.1, is subtracted"),
        ((1.0, [[0.2, 0.6], [1.0, 3.0]], 0.1), [0.76] * 2, "every step exchanges the mean"),
        ((0.0, [[1.0, 2.0, 3.0]] * 3, 0.5), [-3.0] * 3, "three ranks, three steps of mean 2"),
        ((5.0, [[1.0]], 1.0), [4.0], "one rank: its own gradient"),
    ]
    signature = "replicas(weight, gradients, learning_rate)"
    expect_calls(function, cases, signature=signature, rel=1e-9)


@exercise(
    "7.4",
    kind="calculate",
    title="the batch limit",
    hints=("At least one sample for each replica.", "4 N T / F = 2 · 4 N / β."),
)
def _batch_limit(answer: Any) -> None:
    # The limit of many ranks: 2(n-1)/n is 2.
    tokens = hiding_tokens(794.5e12, NDR.bytes_per_s, 2) * 2
    expect_equal(
        answer,
        [1024, 8 * 1024, tokens],
        "one sample a replica; 8 GPUs a replica; and 4NT/F = 2 · 4N/β gives T = 2F/β",
        wants="three numbers",
        rel=1e-3,
    )


@exercise(
    "7.5",
    kind="implement",
    title="bucketing",
    hints=("Add first, then compare: at least the limit.", "Do not lose the last bucket."),
)
def _bucketing(function: Any) -> None:
    calls = [
        ([4] * 16, 25, 1, "the first closes at once, the others at 28"),
        ([1, 1, 1, 1], 2, 2, "exactly the limit closes a bucket"),
        ([10, 1, 1], 5, 3, "a large gradient is not cut"),
        ([1, 1, 1], 100, 100, "the last bucket may hold less"),
        ([2, 2, 2, 1], 3, 1, "only the first bucket has the first limit"),
        ([], 5, 5, "no gradients, no buckets"),
    ]
    cases = [
        ((sizes, cap, first), ddp_buckets(sizes, cap, first), because)
        for sizes, cap, first, because in calls
    ]
    expect_calls(function, cases, signature="fill(sizes, cap, first)")


@exercise(
    "7.6",
    kind="predict",
    title="how many all-reduces?",
    hints=("4 ≥ 1: the first bucket has one gradient.", "How many buckets has the first pass?"),
)
def _how_many(answer: Any) -> None:
    buckets = len(ddp_buckets([4 * MIB] * 16))
    syncs = gradient_syncs(micro_steps=80, accumulation=4, no_sync=True)
    expect_equal(
        answer,
        [buckets, ddp_all_reduces(syncs, buckets)],
        "buckets of 4, 28, 28 and 4 MiB; the first exchange has one bucket, the other 19 have four",
        wants="two whole numbers",
    )


@exercise(
    "7.7",
    kind="debug",
    title="the hang",
    hints=("Compute the branch in any case.", "Something times zero is in the graph."),
)
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
        right = model.always(x)
        right = model.sometimes(right) if both else right
        output = model(x, both)
        alike = isinstance(output, torch.Tensor) and output.shape == right.shape
        if not alike or not torch.allclose(output, right):
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


@exercise(
    "7.8",
    kind="implement",
    title="the exposed time",
    hints=("A bucket starts at max(full, the link is free).", "Backward ends at ready[-1]."),
)
def _exposed(function: Any) -> None:
    calls = [
        ([5, 10, 15], [10, 10, 10], "the link is the bottleneck: 5 + 30 - 15"),
        ([15], [30], "one bucket hides nothing"),
        ([5, 10, 15], [1, 1, 1], "only the last one is exposed"),
        ([1, 2, 10], [5, 5, 1], "the link waits for a bucket that is not full"),
        ([10, 11], [1, 20], "the last bucket is the large one"),
    ]
    cases = [((ready, travel), _end(ready, travel), because) for ready, travel, because in calls]
    expect_calls(function, cases, signature="exposed(ready, travel)", rel=1e-9)


def _end(ready: list[int], travel: list[int]) -> float:
    """By the theory: gradients of `travel` bytes, ready when they should be, at 1 byte a second."""
    waits = [now - before for before, now in zip([0, *ready], ready, strict=False)]
    gradients = [Gradient("", size, wait) for size, wait in zip(travel, waits, strict=True)]
    return ddp_timeline(gradients, 2, Link("1 B/s", 1.0), cap_bytes=1, first_bytes=1).exposed_s


@exercise(
    "7.9", kind="calculate", title="bucket size", hints=("2 · 1023 steps.", "n · α = bytes / β.")
)
def _bucket_size(answer: Any) -> None:
    latency = steps("all-reduce", 1024) * NDR.latency_s
    moving = seconds("all-reduce", 25 * MIB, 1024, replace(NDR, latency_s=0.0))
    equal = latency * NDR.bytes_per_s / sent_bytes("all-reduce", 1, 1024)
    expect_equal(
        answer,
        [latency, moving, equal],
        "2(n-1) steps of latency; 2(n-1)/n · bytes / β; equal at n · α · β bytes",
        wants="two times in seconds and a number of bytes",
        rel=1e-2,
    )


BUILDS = (ddp.DDP,)

QUIZ = (
    Question(
        "How often do the ranks of DDP exchange gradients?",
        ("at every update", "once an epoch", "whenever they have time"),
        answer=0,
        why="After one update with different gradients the replicas would differ forever.",
    ),
    Question(
        "You double the GPUs from 64 to 128, with the same batch per GPU. Each rank's bytes …",
        ("double", "halve", "stay nearly the same"),
        answer=2,
        why="2(n-1)/n · 4N: 1.97 and 1.98 times 4N. Only the number of latencies doubles.",
    ),
    Question(
        "One bucket for everything. How much of the communication hides behind backward?",
        ("none", "half", "all"),
        answer=0,
        why="It is full only when the last gradient is there, and then backward has ended.",
    ),
    Question(
        "One rank skips a layer in forward; the others use it. What happens without "
        "find_unused_parameters?",
        ("an error at once", "the others hang in backward", "the gradient is taken as zero"),
        answer=1,
        why="They send their bucket and wait for a rank that has nothing to send.",
    ),
    Question(
        "A replica spans two GPUs of a node with eight. How many processes does DDP need there?",
        ("8", "4", "2"),
        answer=1,
        why="One process per replica, with device_ids=None; each takes two GPUs.",
    ),
)
