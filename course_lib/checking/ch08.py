"""Exercises and quiz of chapter 8, ZeRO 1, 2, 3."""

from dataclasses import replace
from typing import Any

from course_lib.checking import (
    Question,
    Wrong,
    call,
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_number,
    expect_parts,
    expect_type,
)
from course_lib.checking.builds import zero as zero_build
from course_lib.theory.inputs.hardware import PCIE4
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.network import zero
from course_lib.theory.step.batching import Batching

_MIXED = RECIPES["mixed-16"]
_OFFLOADED = replace(_MIXED, offload="optimizer")


@exercise(
    "8.1",
    kind="calculate",
    title="ZeRO's table 1",
    hints=(
        "Which of 2 + 2 + 12 bytes does the stage cut?",
        "Stage 1: 4 · 128 + 12 · 128 / 16.",
    ),
)
def _table_1(answer: Any) -> None:
    bills = zero.zero_stages(128 * 10**9, 16, _MIXED).bills[1:]
    expect_equal(
        answer,
        [bill.total_bytes / 1e9 for bill in bills],
        "4P + 12P/n, 2P + 14P/n and 16P/n",
        wants="three numbers in GB",
        rel=1e-3,
    )


@exercise(
    "8.2",
    kind="predict",
    title="how many GPUs?",
    hints=("What is left for the cut part?", "Stage 1: 30 + 90/n must be at most 32."),
)
def _fewest(answer: Any) -> None:
    expect_parts(answer, 3, "the GPUs of three stages")
    for stage, given in enumerate(answer, start=1):
        ranks = 1
        while zero.zero_stages(7_500_000_000, ranks, _MIXED).bills[stage].total_bytes > 32e9:
            ranks *= 2
        expect_number(given, ranks, f"stage {stage} is above 32 GB with half as many", unit="GPUs")


_CLIP = "clip_part(part, limit, all_reduce)"


def _on_all_ranks(function: object, parts: list[Any], limit: float) -> list[Any]:
    """What each rank's call returns, all ranks simulated one after the other.

    Each round knows one all-reduce more: what ranks hand in at the k-th call is summed for the next
    round.
    """
    sums: list[Any] = []
    for _ in range(5):
        handed: list[list[Any]] = []

        def clip(part: Any, handed: list[list[Any]] = handed) -> Any:
            given: list[Any] = []
            handed.append(given)

            def all_reduce(value: Any) -> Any:
                place = len(given)
                given.append(value)
                return sums[place].clone() if place < len(sums) else value.clone()

            return call(function, part.clone(), limit, all_reduce, signature=_CLIP)

        results = [clip(part) for part in parts]
        counts = {len(given) for given in handed}
        if len(counts) > 1:
            raise Wrong(f"ranks called all_reduce {sorted(counts)} times, expected equally often")
        if counts == {len(sums)}:
            return results
        place = len(sums)
        sums.append(sum(given[place] for given in handed))
    raise Wrong("called all_reduce more than four times, expected one call of one number")


@exercise(
    "8.3",
    kind="debug",
    title="the wrong clip norm",
    hints=("Which part of a norm can be summed?", "Sum the squares, then take the root."),
)
def _clip(function: Any) -> None:
    import torch

    cases = [
        ([[3.0], [4.0]], 1.0, "the whole norm is 5, not 3 and 4"),
        ([[3.0, 0.0], [0.0, 4.0], [12.0, 0.0]], 6.5, "the whole norm is 13"),
        ([[0.3], [0.4]], 1.0, "a norm of 0.5 is within the limit"),
        ([[0.9], [0.9]], 1.0, "each part is within the limit, the whole is not"),
    ]
    for values, limit, because in cases:
        parts = [torch.tensor(value) for value in values]
        norm = torch.cat(parts).norm()
        expected = [(part * min(1.0, limit / float(norm))).tolist() for part in parts]
        given = [
            result.tolist() if hasattr(result, "tolist") else result
            for result in _on_all_ranks(function, parts, limit)
        ]
        expect_equal(given, expected, because, wants="a tensor from each rank", rel=1e-4)


@exercise(
    "8.4",
    kind="debug",
    title='"ZeRO reduces redundant computation"',
    hints=("Do two ranks ever compute on the same samples?", "Section 8.3's table."),
)
def _redundant(answer: Any) -> None:
    expect_parts(answer, 3, "three factors")
    plain, *_, third = zero.zero_stages(64 * 10**6, 64, _MIXED).bills
    expect_number(answer[0], 1, "each rank computes whole layers for its own samples, as before")
    because = "the weights are gathered once more: three halves for two"
    expect_number(answer[1], third.sent_bytes / plain.sent_bytes, because, rel=1e-3)
    because = "everything is cut into 64 parts"
    expect_number(answer[2], third.total_bytes / plain.total_bytes, because, rel=1e-3)


_CLAIMS = {
    "accelerate trains TensorFlow models": (False, "it is an interface for PyTorch loops"),
    "accelerate can run DeepSpeed's ZeRO": (True, "it stands over DDP, FSDP and DeepSpeed"),
    "GPT-3 was trained with DeepSpeed": (False, "MT-NLG and BLOOM were"),
    "MT-NLG 530B was trained with DeepSpeed and Megatron": (True, "arXiv:2201.11990"),
    "torchrun shards the optimizer": (False, "it starts processes"),
    "ZeRO 3 cuts matrix products over GPUs": (False, "each GPU computes with whole layers"),
}


@exercise(
    "8.5",
    kind="debug",
    title="who is it for?",
    hints=("Section 8.7's table.", "ZeRO is data parallelism: whole layers compute."),
)
def _claims(answer: Any) -> None:
    expect_entries(answer, _CLAIMS, "a dict of True and False", each="True or False")


_PART = "own_part(parameters, ranks, rank)"


@exercise(
    "8.6",
    kind="implement",
    title="who owns what",
    hints=("Round parameters / ranks up.", "Neither start nor stop lies behind the end."),
)
def _own_part(function: Any) -> None:
    calls = {
        (12, 4, 1): "12 divides by 4",
        (10, 4, 0): "parts have 3 elements, 10/4 rounded up",
        (10, 4, 3): "the last part is filled up with zeros",
        (5, 4, 2): "parts have 2 elements, so rank 2 owns one",
        (5, 4, 3): "nothing is left for rank 3: its part is zeros",
        (7, 1, 0): "one rank owns all",
    }
    cases = []
    for arguments, because in calls.items():
        part = zero.shard(*arguments)
        cases.append((arguments, [part.start, part.stop, part.zeros], because))
    expect_calls(function, cases, signature=_PART)


@exercise(
    "8.7",
    kind="predict",
    title="the volume with accumulation",
    hints=(
        "A half is 3/4 · 2,000,000 bytes.",
        "Which stage can wait for the last micro-batch?",
    ),
)
def _volume(answer: Any) -> None:
    expect_parts(answer, 4, "the bytes of stages 0 to 3")
    reasons = (
        "one all-reduce is two halves, whatever the accumulation",
        "one reduce-scatter and one all-gather",
        "a reduce-scatter in each micro-batch, one all-gather",
        "two all-gathers and a reduce-scatter in each micro-batch",
    )
    for stage, because in enumerate(reasons):
        expected = zero.sent_bytes(10**6, stage, 4, _MIXED, accumulation=8)
        expect_number(answer[stage], expected, because, rel=1e-6, unit="B")


@exercise(
    "8.8",
    kind="calculate",
    title="offload",
    hints=("Which 12 of the 16 bytes move?", "Gradients and weights have 2 bytes each."),
)
def _offload(answer: Any) -> None:
    expect_parts(answer, 3, "bytes and two times")
    one, eight = (zero.zero_stages(13 * 10**9, ranks, _OFFLOADED).bills[2] for ranks in (1, 8))
    because = "master copy and two numbers of AdamW are 12 bytes"
    expect_number(answer[0], one.host_bytes, because, rel=1e-3, unit="B")
    because = "2 bytes there and 2 back"
    expect_number(answer[1], one.bus_seconds(PCIE4), because, rel=5e-3, unit="s")
    because = "each GPU moves an eighth over its own slot"
    expect_number(answer[2], eight.bus_seconds(PCIE4), because, rel=5e-3, unit="s")


@exercise(
    "8.9",
    kind="debug",
    title="a configuration",
    hints=("64 = 4 · accumulation · 4.", "Which default changed in 2026?"),
)
def _configuration(answer: Any) -> None:
    expect_type(answer, dict, "a configuration, a dict")
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}
    for key, size in sizes.items():
        if key not in answer:
            raise Wrong(f"gave no {key}, expected the configuration to keep its {size}")
        expect_number(answer[key], size, f"the {key} stays")
    accumulation = 1
    while Batching(1000, 4, accumulation, gpus_per_node=4).global_batch < 64:
        accumulation += 1
    # DeepSpeed computes this one where it is left out.
    steps = answer.get("gradient_accumulation_steps", accumulation)
    expect_number(steps, accumulation, "64 = micro-batch 4 · accumulation · 4 ranks")
    if "gradient_clipping" not in answer:
        raise Wrong("gave no gradient_clipping, expected 0.0 because newer versions clip at 1.0")
    expect_number(answer["gradient_clipping"], 0, "DDP does not clip")
    section = answer.get("zero_optimization")
    stage = section.get("stage") if isinstance(section, dict) else None
    expect_equal({"stage": stage}, {"stage": 2}, "stage 2 is the one with whole weights")


@exercise(
    "8.10",
    kind="calculate",
    title="what can stage 1 remove?",
    hints=("In pure fp32 there is no master copy.", "Optimizer bytes / all bytes."),
)
def _stage_1_part(answer: Any) -> None:
    parts = []
    for name in ("mixed-16", "fp32-16", "megatron-18"):
        bill = zero.zero_stages(10**6, 1, RECIPES[name]).bills[0]
        parts.append(bill.optimizer_bytes / bill.total_bytes)
    expect_equal(
        answer,
        parts,
        "it shards the master copy, where there is one, and AdamW's 8 bytes",
        wants="three fractions",
        rel=1e-3,
    )


BUILDS = (zero_build.ZERO,)

QUIZ = (
    Question(
        "Why does plain data parallelism store the optimizer states on each GPU?",
        (
            "each GPU does the same update",
            "each GPU has other gradients after the all-reduce",
            "the network is too slow to share them",
        ),
        answer=0,
        why="After the all-reduce all gradients are equal, and so are states and new weights.",
    ),
    Question(
        "Stage 2 sends as much as plain data parallelism. Why?",
        (
            "it compresses the gradients",
            "an all-reduce is a reduce-scatter and an all-gather, and so is stage 2",
            "it sends less often",
        ),
        answer=1,
        why="The update moves between the halves; the second half carries weights.",
    ),
    Question(
        "128 GPUs instead of 64, stage 1, 7.5B parameters. What becomes of the 31.4 GB?",
        ("15.7 GB", "30.7 GB", "31.4 GB"),
        answer=1,
        why="Only 12P/n halves, from 1.4 to 0.7 GB. Weights and gradients stay whole.",
    ),
    Question(
        "Your activations do not fit. Which stage helps most?",
        ("stage 2", "stage 3", "none: ZeRO does not cut activations"),
        answer=2,
        why="It may free memory for them, but each GPU keeps its own samples' activations.",
    ),
    Question(
        "A rank clips its shard by the norm of its shard, on 16 ranks. The whole gradient's norm?",
        ("up to 4 times the limit", "the limit", "a sixteenth of the limit"),
        answer=0,
        why="Each part has the limit as its norm: the root of 16 · limit².",
    ),
)
