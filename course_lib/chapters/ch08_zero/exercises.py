"""Exercises and quiz of chapter 8, ZeRO 1, 2, 3."""

from dataclasses import replace
from functools import partial
from typing import Any

from course_lib.chapters.ch08_zero import builds, zero_choice
from course_lib.checking import (
    Wrong,
    call,
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_number,
    expect_numbers,
    expect_parts,
    expect_type,
)
from course_lib.theory.inputs import Job, Layout
from course_lib.theory.inputs.hardware import PCIE4
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.memory.peak import memory_moments
from course_lib.theory.network import zero
from course_lib.theory.step.batching import Batching

_MIXED = RECIPES["mixed-16"]


@exercise("8.1")
def _table_1(answer: Any) -> None:
    plain, *cut = zero.zero_stages(128 * 10**9, 16, RECIPES["megatron-18"]).bills
    reasons = (
        "6P + 12P/n: weights and fp32 gradients stay whole",
        "2P + 16P/n: only the weights stay whole",
        "18P/n",
    )
    sizes = [bill.total_bytes / 1e9 for bill in cut]
    rows = [(gb, because, 1e-3, "GB") for gb, because in zip(sizes, reasons, strict=True)]
    because = "gradients of 4 bytes and weights of 2, instead of gradients twice"
    factor = (cut[0].sent_bytes / plain.sent_bytes, because, 1e-3, "")
    expect_numbers(answer, "three numbers in GB and a factor", *rows, factor)


@exercise("8.2")
def _fitting(answer: Any) -> None:
    expect_parts(answer, 3, "the GPUs of three stages, a factor and a number of tokens")
    count, given_ranks, expected = 32 * 10**9, 64, {}
    for stage in (3, 2, 1):
        ranks = zero_choice.fewest_ranks(count, stage, 68e9, _MIXED)
        whole, cut = (count * each // 10**9 for each in zero_choice.whole_and_cut(stage, _MIXED))
        expected[stage] = (ranks or "never", f"{whole} GB stay whole, {cut} GB are cut")
        if ranks and ranks <= given_ranks:
            lowest = stage
    expect_parts(answer[0], 3, "the GPUs of three stages")
    listed = dict(enumerate(answer[0], start=1))
    expect_entries(listed, expected, "a number for each stage", each="a number of GPUs or 'never'")
    sent, plain = (
        zero.sent_bytes(count, stage, given_ranks, _MIXED, accumulation=8) for stage in (lowest, 0)
    )
    because = "stage 3 gathers twice and reduces once for each of 8 micro-batches: 24 halves, not 2"
    expect_number(answer[1], sent / plain, because, rel=1e-3)
    expect_number(answer[2], 400e12 / 50e9, "400 · 10^12 FLOP/s over 50 · 10^9 B/s", rel=1e-3)


def _on_all_ranks(function: object, parts: list[Any], limit: float) -> list[Any]:
    """Simulate the ranks in turn, and return each rank's result.

    Every round replays all ranks with one more all-reduce known: the sum of the tensors that the
    ranks passed to their k-th call in the round before.
    """
    sums: list[Any] = []

    def all_reduce(passed: list[Any], value: Any) -> Any:
        passed.append(value)
        return (sums[len(passed) - 1] if len(passed) <= len(sums) else value).clone()

    for known in range(5):
        passed_by_rank: list[list[Any]] = [[] for _ in parts]
        results = [
            call(
                function,
                part.clone(),
                limit,
                partial(all_reduce, passed),
                signature="clip_part(part, limit, all_reduce)",
            )
            for part, passed in zip(parts, passed_by_rank, strict=True)
        ]
        counts = {len(passed) for passed in passed_by_rank}
        if len(counts) > 1:
            raise Wrong(f"ranks called all_reduce {sorted(counts)} times, expected equally often")
        if counts == {known}:
            return results
        sums.append(sum(passed[known] for passed in passed_by_rank))
    raise Wrong("called all_reduce more than four times, expected one call of one number")


@exercise("8.3")
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
        results = [
            result.tolist() if hasattr(result, "tolist") else result
            for result in _on_all_ranks(function, parts, limit)
        ]
        expect_equal(results, expected, because, wants="a tensor from each rank", rel=1e-4)


_JOBS = (  # model, GPUs, GB of activations
    ("gpt2-1.5b", 8, 30),
    ("llama2-7b", 8, 50),
    ("llama2-7b", 8, 58),
    ("llama2-13b", 16, 10),
    ("llama1-33b", 32, 20),
    ("llama2-70b", 8, 10),
)


def _lowest_stage(model: str, gpus: int, activations_gb: int) -> tuple[int | str, str]:
    """The lowest stage that fits in 78 of 80 GB, or "none" if none does, and the reason."""
    needs = []
    for stage in zero.STAGES:
        job = Job(MODELS[model], _MIXED, Layout(dp=gpus, zero_stage=stage))
        bill = zero.zero_stages(job.shape.parameters().total, gpus, _MIXED).bills[stage]
        moment = memory_moments(job)["backward begins"]
        whole = moment.gathered_gradients_bytes + moment.gathered_parameters_bytes
        needs.append((bill.total_bytes + moment.bucket_bytes + whole) / 1e9 + activations_gb)
    listed = ", ".join(f"{stage}: {size:.1f} GB" for stage, size in enumerate(needs))
    fitting = [stage for stage, size in enumerate(needs) if size <= 78]
    return (fitting[0] if fitting else "none"), f"the stages need {listed}"


@exercise("8.4")
def _which_stage(answer: Any) -> None:
    right = {
        f"{name} on {gpus} GPUs, {gb} GB": _lowest_stage(name, gpus, gb) for name, gpus, gb in _JOBS
    }
    expect_entries(answer, right, "a dict with a stage for each job", each="0, 1, 2, 3 or 'none'")


_KEYS = {
    "the loss curve changed with the version, the file did not": (
        "gradient_clipping",
        "its default was 0 and is 1.0 in newer versions",
    ),
    "stage 3 of a tiny model: each GPU still has all weights": (
        "stage3_param_persistence_threshold",
        "tensors of less than 100,000 elements stay whole",
    ),
    "stage 2: the network is idle in backward, busy after it": (
        "overlap_comm",
        "it is off where stage 3 is not asked for",
    ),
    "2 GB that nobody can explain, the same for any large model in fp32": (
        "reduce_bucket_size",
        "5 · 10^8 elements of 4 bytes are 2 GB",
    ),
    "offload: the GPU waits for each copy to the host": (
        "pin_memory",
        "only to and from pinned memory a GPU copies while it computes",
    ),
    "an error: your own optimizer is not on a list": (
        "zero_allow_untested_optimizer",
        "DeepSpeed takes only optimizers on its list, unless this allows others",
    ),
}


@exercise("8.5")
def _keys(answer: Any) -> None:
    expect_entries(answer, _KEYS, "a dict with a key for each job", each="a key of the table")


@exercise("8.6")
def _own_marks(function: Any) -> None:
    calls = {
        ((6, 6), (True, False), 4, 1): "12 elements divide by 4; rank 1 has the other half of 6",
        ((6, 4), (True, False), 4, 1): "parts have 3 elements: those from 3 to 5 are the matrix's",
        ((6, 4), (False, True), 4, 3): "one element is left for rank 3, and two zeros of padding",
        ((4, 3, 4), (True, False, True), 3, 1): "its part begins and ends in tensors that decay",
        ((5,), (True,), 4, 3): "nothing is left for rank 3: its part is padding",
        ((3, 4), (True, False), 1, 0): "one rank has all",
    }
    cases = []
    for (sizes, decays, ranks, rank), because in calls.items():
        part = zero.shard(sum(sizes), ranks, rank)
        whole = [int(decay) for size, decay in zip(sizes, decays, strict=True) for _ in range(size)]
        marks = whole[part.start : part.stop] + part.zeros * [0]
        cases.append(((list(sizes), list(decays), ranks, rank), marks, because))
    expect_calls(function, cases, signature="own_marks(sizes, decays, ranks, rank)")


_FIRST = {
    "A: 7B under DDP on 8 GPUs, out of memory in the first update": (
        "stage 1",
        "it stores 37 GB instead of 108, and sends nothing more",
    ),
    "B: 13B, stage 2, 64 GPUs, 16 micro-batches, 30 GB free: waits for messages": (
        "stage 1",
        "it fits, with 26 GB more, and sends 2 halves instead of 17",
    ),
    "C: 7B, stage 3, 64 GPUs, out of memory at the end of the forward pass": (
        "recompute activations",
        "the states take 1.7 GB, and no stage cuts activations",
    ),
    "D: 13B on one GPU, 512 GB of host memory, out of memory in the first update": (
        "offload the optimizer",
        "with one GPU there is nobody to share with, and 12 of 16 bytes can move",
    ),
    "E: 70B, stage 3, 64 GPUs, 2,000 tokens each, 40 GB free: waits for messages": (
        "larger micro-batches",
        "the messages stay, and more tokens give them more to hide behind",
    ),
    "F: 7B, stage 1, one micro-batch: the network is idle until backward has ended": (
        "overlap the messages",
        "the bytes are few, but they leave too late",
    ),
}


@exercise("8.7")
def _which_first(answer: Any) -> None:
    each = "one of the seven measures"
    expect_entries(answer, _FIRST, "a dict with a measure for each run", each=each)


@exercise("8.8")
def _offload(answer: Any) -> None:
    offloaded = replace(_MIXED, offload="optimizer")
    one, eight = (zero.zero_stages(13 * 10**9, ranks, offloaded).bills[2] for ranks in (1, 8))
    expect_numbers(
        answer,
        "bytes and two times",
        (one.host_bytes, "master copy and two numbers of AdamW are 12 bytes", 1e-3, "B"),
        (one.bus_seconds(PCIE4), "2 bytes there and 2 back", 5e-3, "s"),
        (eight.bus_seconds(PCIE4), "each GPU moves an eighth over its own slot", 5e-3, "s"),
    )


@exercise("8.9")
def _configuration(answer: Any) -> None:
    expect_type(answer, dict, "a configuration, a dict")
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}
    for key, size in sizes.items():
        if key not in answer:
            raise Wrong(f"gave no {key}, expected the configuration to keep its {size}")
        expect_number(answer[key], size, f"the {key} stays")
    accumulation = 64 // Batching(1000, 4, gpus_per_node=4).global_batch
    # DeepSpeed derives it if the key is left out.
    steps = answer.get("gradient_accumulation_steps", accumulation)
    expect_number(steps, accumulation, "64 = micro-batch 4 · accumulation · 4 ranks")
    if "gradient_clipping" not in answer:
        raise Wrong("gave no gradient_clipping, expected 0.0 because newer versions clip at 1.0")
    expect_number(answer["gradient_clipping"], 0, "DDP does not clip")
    section = answer.get("zero_optimization")
    stage = section.get("stage") if isinstance(section, dict) else None
    expect_equal({"stage": stage}, {"stage": 2}, "stage 2 is the one with whole weights")


_CUT = "the held bytes show which of the three states are cut"
_RUNS = {
    "A": ("DDP", "everything is whole, and the gradients travel once"),
    "B": (
        "ZeroRedundancyOptimizer",
        "the optimizer is cut, but DDP's all-reduce stays and weights are broadcast",
    ),
    "C": ("ZeRO 2", _CUT),
    "D": ("DDP without no_sync", "it all-reduces the gradients of every micro-batch"),
    "E": ("ZeRO 3", _CUT),
    "F": ("ZeRO 1", _CUT),
}


@exercise("8.10")
def _which_run(answer: Any) -> None:
    expect_parts(answer, 2, "a dict with a name for each run, and a number of bytes")
    each = ", ".join(repr(name) for name, _ in _RUNS.values())
    expect_entries(answer[0], _RUNS, "a dict with a name for each run", each=f"one of {each}")
    sent = zero.sent_bytes(10**6, 3, 4, RECIPES["fp32-16"], accumulation=4)
    because = "a reduce-scatter and two all-gathers in each micro-batch, 3/4 of 4 MB each"
    expect_number(answer[1], sent, because, rel=1e-3, unit="B")


BUILDS = (builds.ZERO,)
