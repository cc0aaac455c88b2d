"""Exercises and quiz of chapter 1, steps and batches."""

import re
from dataclasses import replace
from typing import Any

from course_lib.checking import (
    Wrong,
    call,
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_parts,
    expect_raises,
    expect_type,
    expect_whole_numbers,
)
from course_lib.theory.step.batching import Batching, rank_samples


@exercise("1.1")
def _iterations(answer: Any) -> None:
    expect_equal(
        answer,
        [max(60 * 16 + 1, 38 * 25), min(61 * 16, 39 * 25 - 1)],
        "the first log fits 961 to 976 samples, the second 950 to 974",
        wants="two whole numbers: the fewest and the most samples",
    )


@exercise("1.2")
def _schedule(answer: Any) -> None:
    one_gpu = Batching(samples=120_000, micro_batch=8, accumulation=4)
    planned = 3 * one_gpu.epoch().updates
    updates = 3 * replace(one_gpu, nodes=2, gpus_per_node=8).epoch().updates
    expect_equal(
        answer,
        [updates, 500 / updates, updates / planned],
        "16 ranks make a sixteenth of the updates, 235 an epoch: most of the run is warm-up, and "
        "the learning rate has hardly fallen when it ends",
        wants="three numbers: updates, and two fractions",
        rel=5e-3,
    )


@exercise("1.3")
def _global_batch(function: Any) -> None:
    signature = "global_batch(micro_batch, accumulation, nodes, gpus, tp, pp, cp)"
    expect_calls(
        function,
        [
            ((4, 8, 2, 8), 512, "pure data parallelism: 4 × 8 × 16 GPUs"),
            ((4, 8, 8, 8, 8, 4), 64, "32 of the 64 GPUs share one copy of the model, so dp is 2"),
            ((1, 1, 2, 8, 1, 1, 2), 8, "context parallel ranks share one sequence, so dp is 8"),
        ],
        signature=signature,
    )
    expect_raises(
        function,
        (4, 8, 1, 8, 3),
        ValueError,
        "8 processes do not form groups of tp = 3",
        signature=signature,
    )


@exercise("1.4")
def _my_samples(function: Any) -> None:
    cases = [
        ((samples, world, rank), rank_samples(samples, world, rank))
        for samples, world, rank in ((8, 2, 0), (8, 2, 1), (10, 4, 0), (10, 4, 3), (3, 8, 7))
    ]
    because = "rank r takes samples r, r + world, …, starting over at 0 until all have equally many"
    expect_calls(function, cases, because, signature="my_samples(samples, world, rank)")


@exercise("1.5")
def _orders(function: Any) -> None:
    signature = "orders(samples, world, rank, epochs, first)"
    by_rank = [call(function, 12, 2, rank, 3, 0, signature=signature) for rank in range(2)]
    for epochs in by_rank:
        expect_parts(epochs, 3, "a list with one list of sample numbers for each of 3 epochs")
        for order in epochs:
            expect_whole_numbers(order, "a list of sample numbers for each epoch")
    for epoch in range(3):
        seen = sorted(sample for epochs in by_rank for sample in epochs[epoch])
        because = "together the ranks see each sample once per epoch"
        expect_equal(seen, list(range(12)), because, what="in one epoch both ranks together")
    if len({tuple(order) for order in by_rank[0]}) < 3:
        raise Wrong(
            "gave the same order twice in 3 epochs, expected 3 different ones",
            "set_epoch(epoch) must tell the sampler which epoch it is",
        )
    resumed = call(function, 12, 2, 0, 1, 2, signature=signature)
    because = "the first epoch after the break has its own number, not 0"
    expect_equal(resumed, by_rank[0][2:], because, what="resumed at epoch 2, it")


@exercise("1.6")
def _tails(answer: Any) -> None:
    batching = Batching(samples=1003, gpus_per_node=4, micro_batch=8, accumulation=4)
    keep = batching.epoch()
    drop = replace(batching, drop_last=True).epoch()
    expect_parts(answer, 2, "two lists: kept and dropped")
    of_kept = "251 samples a rank, rounded up, 32 micro-batches, 8 windows; 4 × 251 - 1003 repeated"
    of_dropped = "250 samples a rank, 31 full micro-batches, 7 full windows of 4 = 28 micro-steps"
    for counts, name, expected, because in (
        (answer[0], "kept", [keep.micro_steps, keep.updates, keep.repeated], of_kept),
        (answer[1], "dropped", [drop.micro_steps, drop.updates, drop.dropped], of_dropped),
    ):
        expect_equal(counts, expected, because, "three whole numbers", what=f"for {name!r} it")


# tp, pp, cp, micro-batch, accumulation
_SETTINGS = {
    "tp 1, pp 1, cp 2, micro-batch 1, accumulation 1": (1, 1, 2, 1, 1),
    "tp 8, pp 4, micro-batch 2, accumulation 8": (8, 4, 1, 2, 8),
    "tp 8, pp 8, micro-batch 4, accumulation 8": (8, 8, 1, 4, 8),
    "tp 8, pp 8, micro-batch 1, accumulation 16": (8, 8, 1, 1, 16),
    "tp 8, pp 1, micro-batch 4, accumulation 1": (8, 1, 1, 4, 1),
    "tp 8, pp 4, cp 2, micro-batch 2, accumulation 8": (8, 4, 2, 2, 8),
}
_VERDICTS = ("LLaMA-2's batch", "another batch", "does not fit")


@exercise("1.7")
def _batch_of_llama2(answer: Any) -> None:
    expected: dict[str, tuple[object, str]] = {}
    for setting, (tp, pp, cp, micro_batch, accumulation) in _SETTINGS.items():
        layout = Batching(10**6, micro_batch, accumulation, 256, 8, tp=tp, pp=pp, cp=cp)
        because = f"dp is {layout.dp}, so an update uses {layout.global_batch} sequences"
        verdict = _VERDICTS[layout.global_batch != 1024]
        if 138 / (tp * pp) > 80:
            verdict, because = _VERDICTS[2], "each GPU would hold all 138 GB of weights"
        expected[setting] = (verdict, because)
    wants = "one of " + ", ".join(map(repr, _VERDICTS))
    expect_entries(answer, expected, "a dict with a verdict on each setting", each=wants)


# RUNS[run][rank][epoch]: the samples in the order in which the rank saw them.
RUNS = {
    "A": [[[6, 1, 4, 3], [2, 7, 1, 5]], [[3, 0, 7, 4], [5, 6, 2, 0]]],
    "B": [[[2, 7, 0, 5], [2, 7, 0, 5]], [[6, 3, 1, 4], [6, 3, 1, 4]]],
    "C": [
        [[5, 2, 7, 0, 3, 6, 1, 4], [1, 4, 0, 6, 7, 3, 5, 2]],
        [[5, 2, 7, 0, 3, 6, 1, 4], [1, 4, 0, 6, 7, 3, 5, 2]],
    ],
    "D": [[[4, 0, 6, 3], [1, 5, 2, 4]], [[1, 5, 2, 4], [6, 3, 0, 1]]],
}
_FAULTS = (
    "set_epoch is missing",
    "every rank has all samples",
    "the ranks shuffle with different seeds",
    "nothing",
)


def _fault_of(run: list[list[list[int]]]) -> tuple[str, str]:
    """The fault in a run of two epochs, and the reason."""
    all_samples = {sample for rank in run for epoch in rank for sample in epoch}
    if any(rank[0] == rank[1] for rank in run):
        return _FAULTS[0], "both epochs have the same order"
    if any(len(epoch) == len(all_samples) for rank in run for epoch in rank):
        return _FAULTS[1], "each rank goes through the whole data set: it has no DistributedSampler"
    if any({*run[0][epoch], *run[1][epoch]} != all_samples for epoch in range(2)):
        return _FAULTS[2], "in one epoch some samples come twice and others not at all"
    return _FAULTS[3], "all samples are there in each epoch, and a repeated one fills up the ranks"


@exercise("1.8")
def _four_runs(answer: Any) -> None:
    expected = {name: _fault_of(run) for name, run in RUNS.items()}
    wants = "one of " + ", ".join(map(repr, _FAULTS))
    expect_entries(answer, expected, "a dict with a verdict on each run", each=wants)


@exercise("1.9")
def _tokens_slider(function: Any) -> None:
    from ipywidgets import HTML, IntSlider

    for sequence in (4096, 2048):
        pair = call(function, sequence, signature="tokens_slider(sequence)")
        expect_parts(pair, 2, "a slider and a text")
        slider, text = pair
        expect_type(slider, IntSlider, "an IntSlider as the first part")
        expect_type(text, HTML, "an HTML as the second part")
        ends = "the accumulation goes from 1 to 16"
        expect_equal([slider.min, slider.max], [1, 16], ends, what="the slider's ends: it")
        for accumulation in (1, 5, 16):
            slider.value = accumulation
            plan = Batching(10**6, 2, accumulation, gpus_per_node=4, sequence=sequence)
            said = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", text.value)]
            if plan.tokens_per_batch not in said:
                raise Wrong(
                    f"with the slider at {accumulation} the text says {text.value!r}, "
                    "expected another number of tokens",
                    "tokens = micro-batch 2 × accumulation × 4 ranks × sequence",
                )
