"""Exercises and quiz of chapter 10, tensor parallelism."""

import math
from contextlib import suppress
from typing import Any

from course_lib.chapters.ch10_tensor_parallelism import overlapped_product
from course_lib.chapters.ch10_tensor_parallelism.builds import sequence, tensor, vocabulary
from course_lib.checking import (
    exercise,
    expect_calls,
    expect_choice,
    expect_entries,
    expect_number,
    expect_numbers,
    expect_parts,
    expect_raises,
)
from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.hardware import Cluster
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.network import collectives, tensor_parallel
from course_lib.theory.network.traffic import group_link

_H100 = hardware.accelerator("H100-SXM")


@exercise("10.1")
def _two_kinds(answer: Any) -> None:
    expect_parts(answer, 4, "two sizes in bytes, a number of tokens, and a name")
    sent = collectives.tensor_parallel_bytes(1, 2048, 12288, tp=8)
    gradients = collectives.sent_bytes("all-reduce", 2 * 12 * 12288**2 // 8, 8)
    rows = (
        (sent, "8 b s h (t-1)/t numbers of 2 bytes", 1e-3, "B"),
        (gradients, "2 · 7/8 of an eighth of 12 h² numbers of 2 bytes", 1e-3, "B"),
        (2048 * gradients / sent, "3 h / t tokens", 1e-3, ""),
    )
    for one, (number, because, rel, unit) in zip(answer, rows, strict=False):
        expect_number(one, number, because, rel=rel, unit=unit)
    because = "gradients travel behind backward; the next product waits for the other ones"
    expect_choice(answer[3], "data", because, ("tensor", "data"))


def _largest(name: str) -> int:
    """The largest tensor-parallel degree up to 16 that fits the model."""
    degrees = []
    for tp in range(1, 17):
        with suppress(ValueError):
            Layout(tp=tp).check(MODELS[name])
            degrees.append(tp)
    return max(degrees)


@exercise("10.2")
def _heads(answer: Any) -> None:
    expect_parts(answer, 2, "a dict of degrees and a number")
    right = {}
    for name in ("gpt2-1.5b", "llama1-33b", "llama2-13b", "llama2-70b"):
        shape = MODELS[name]
        because = f"{shape.heads} heads, {shape.kv_heads} for keys, ffn {shape.ffn}"
        right[name] = (_largest(name), because)
    expect_entries(answer[0], right, "a dict of degrees", each="a whole number")
    copies = tensor_parallel.kv_copies(MODELS["llama2-70b"].kv_heads, _largest("llama2-70b"))
    expect_number(answer[1], copies, "8 key-value heads on t GPUs: t / 8 share one")


@exercise("10.3")
def _passes(answer: Any) -> None:
    training = collectives.layer_intensity(8192, 8)
    forward = training * (2 / 6) / (2 / 4)  # a third of the FLOP for half of the bytes
    again = training * (8 / 6) / (6 / 4)
    twice = "the backward pass has twice the FLOP for the same two all-reduces"
    narrow = collectives.layer_intensity(8192, 8, element_bytes=1)
    reach = "3 h / (t - 1) against 2199, where training reaches 17"
    expect_numbers(
        answer,
        "three numbers of FLOP per byte and a number of GPUs",
        (forward, twice, 5e-3, ""),
        (again, "8 instead of 6 FLOP a weight, six all-reduces, not four", 5e-3, ""),
        (narrow, "half of the bytes", 5e-3, ""),
        (int(1 + 7 * forward / 2199), reach, 0, ""),
    )


def _accepted(hidden: int, gpu: hardware.Accelerator) -> int:
    """The largest of 1, 2, 4 and 8 at which communication is at most 40 % of a layer's time."""
    accepted = 1
    for tp in (2, 4, 8):
        link = group_link(Cluster(gpu), "all-reduce", tp, 1)
        layer = tensor_parallel.CutLayer(hidden, tp, gpu.peak_flop_per_s, link)
        if layer.communication_s <= 0.4 * layer.seconds:
            accepted = tp
    return accepted


@exercise("10.4")
def _reach(answer: Any) -> None:
    ridge = "4.5 · 2048 / (t - 1) against a ridge of 2199, without latency"
    expect_numbers(
        answer,
        "four whole numbers",
        (_accepted(8192, _H100), "at 8 a third is communication", 0, ""),
        (
            _accepted(8192, hardware.accelerator("RTX4090")),
            "at 8 half of the time is lost over PCIe",
            0,
            "",
        ),
        (_accepted(2048, _H100), "at 4 it is half: a small layer leaves little to compute", 0, ""),
        (collectives.layer_tp_reach(2048, _H100.peak_flop_per_s, 450e9), ridge, 0, ""),
    )


_PRINTED = {  # what the pair of section 10.2 prints on two ranks, with a mistake
    "Z (20, 7) and (20, 7), gradient (1, 3) and (-6, 12)": (
        "no f",
        "each rank knows the gradient through its own half only",
    ),
    "Z (21, 8) and (21, 8), gradient (-5, 15) and (-5, 15)": (
        "bias before the sum",
        "the bias counts once for each rank",
    ),
    "Z (8, 1) and (13, 7), gradient (-5, 15) and (-5, 15)": (
        "no g",
        "each rank has its own part of the sum",
    ),
    "Z (20, 7) and (20, 7), gradient (-10, 30) and (-10, 30)": (
        "g sums in the backward pass as well",
        "both ranks know Z's gradient, so a sum doubles it",
    ),
}


@exercise("10.5")
def _read(answer: Any) -> None:
    expect_entries(answer, _PRINTED, "a dict of mistakes", each="one of the four mistakes")


@exercise("10.6")
def _rows(function: Any) -> None:
    calls = {
        (4, 4, 1, 1, 0): "one rank needs all",
        (4, 4, 1, 2, 0): "q, k and v are cut each: rows 0, 1 of each part",
        (4, 4, 2, 2, 1): "a head is `width` rows",
        (4, 2, 1, 2, 1): "keys follow heads · width rows, values kv_heads · width more",
        (4, 2, 1, 4, 1): "4 ranks share 2 key-value heads: ranks 0 and 1 hold the first",
        (4, 2, 2, 4, 2): "ranks 2 and 3 hold the second",
        (64, 8, 2, 16, 5): "two ranks to each key-value head",
    }
    cases = []
    for (*sizes, tp, rank), because in calls.items():
        rows = tensor_parallel.qkv_rows(*sizes, tp=tp, rank=rank)
        cases.append(((*sizes, tp, rank), rows, because))
    expect_calls(function, cases, signature="my_rows(heads, kv_heads, width, tp, rank)")
    expect_raises(function, (4, 4, 1, 3, 0), ValueError, "3 does not divide 4 heads")


@exercise("10.7")
def _length(function: Any) -> None:
    cases = [
        (([[3.0]], [[4.0]]), 5.0, "one rank: the root of 9 + 16"),
        (([[2.0], [2.0]], [[1.0], [1.0]]), 3.0, "4 + 4 of the parts, and 1 once: 9"),
        (
            ([[1.0, 2.0], [0.0, 2.0], [6.0, 0.0]], [[2.0], [2.0], [2.0]]),
            7.0,
            "45 of the parts, and 4 once: 49",
        ),
    ]
    expect_calls(function, cases, signature="gradient_length(cut, whole)", rel=1e-9)


@exercise("10.9")
def _loss(function: Any) -> None:
    def loss(parts: list[list[float]], label: int) -> float:
        scores = [score for part in parts for score in part]
        top = max(scores)
        return top + math.log(sum(math.exp(score - top) for score in scores)) - scores[label]

    calls = [
        (([[1.0, 2.0], [3.0, 0.0]], 1), "section 10.5: 1.4402"),
        (([[1.0, 2.0], [3.0, 0.0]], 2), "the label may lie on the second rank"),
        (([[0.0, 0.0, 0.0, 0.0]], 3), "one rank: log 4"),
        (([[1000.0, 998.0], [1001.0, 1000.0]], 0), "subtract the largest of all before exp"),
        (([[-1000.0, -900.0], [5.0, 4.0], [0.0, 1.0]], 4), "the largest of all ranks, not of each"),
    ]
    cases = [(args, loss(*args), because) for args, because in calls]
    # fp32 represents scores of 1000 to 6e-5, and the losses here are 1 or larger.
    expect_calls(function, cases, signature="cut_loss(parts, label)", rel=1e-4)


_F_TWICE, _NO_F, _GATHERED, _NORMS, _RIGHT = (
    "an f for each of q, k and v",
    "no f before the MLPs",
    "the logits are gathered",
    "the gradients of norms are not summed",
    "as it should be",
)


@exercise("10.10")
def _logs(answer: Any) -> None:
    layers, outside = 24, 1 + 1 + 3  # the embedding, the head, and three of the loss
    plain = 4 * layers + outside
    shares = f"{plain - 3} all-gathers, {plain - 3} reduce-scatters"
    right = {
        f"{plain + 2 * layers} all-reduces": (_F_TWICE, "it makes two more in each layer"),
        f"{plain} all-reduces": (_RIGHT, "it makes 4 in each layer, and 1 + 1 + 3"),
        f"{plain - layers} all-reduces": (_NO_F, "it makes one fewer in each layer"),
        f"{plain - 3} all-reduces, 1 all-gather": (_GATHERED, "the loss's three are missing"),
        f"3 all-reduces, {shares}": (_NORMS, "only those of the loss are left"),
        f"4 all-reduces, {shares}": (_RIGHT, "three for the loss, one for the norms' gradients"),
    }
    each = ", ".join(map(repr, (_F_TWICE, _NO_F, _GATHERED, _NORMS, _RIGHT)))
    expect_entries(answer, right, "a dict of verdicts", each=f"one of {each}")


@exercise("10.14")
def _slower_link(answer: Any) -> None:
    expect_parts(answer, 3, "a percentage, a time in ms and the name of a chip")
    slow, fast = (
        tensor_parallel.CutLayer(8192, 8, gpu.peak_flop_per_s, gpu.inside)
        for gpu in (hardware.accelerator("H800-SXM"), _H100)
    )
    seconds = overlapped_product.overlapped_seconds(slow)
    hidden = 100 * (slow.seconds - seconds) / slow.communication_s
    expect_number(answer[0], hidden, "what overlap saves, of all messages", rel=0.01, unit="%")
    because = "the arithmetic, and what stays exposed"
    expect_number(answer[1], 1000 * seconds, because, rel=5e-3, unit="ms")
    assert seconds < fast.seconds
    because = "3.58 ms against 3.73 ms: overlap makes up for less than half of the bandwidth"
    expect_choice(answer[2], "H800", because, ("H800", "H100"))


BUILDS = (tensor.TENSOR, sequence.SEQUENCE, vocabulary.VOCABULARY)
