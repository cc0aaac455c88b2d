"""Exercises and quiz of chapter 1, steps and batches."""

from dataclasses import replace
from typing import Any

from course_lib.checking import (
    Question,
    Wrong,
    call,
    exercise,
    expect_calls,
    expect_equal,
    expect_parts,
    expect_raises,
    expect_whole_numbers,
)
from course_lib.theory.step.batching import Batching, rank_samples


@exercise(
    "1.1",
    kind="debug",
    title="epoch = batch × iterations?",
    hints=(
        "What happens to the samples that do not fill a batch?",
        "Nothing is dropped, so round up.",
        "The last batch has what the 390 full ones leave over.",
    ),
)
def _iterations(answer: Any) -> None:
    epoch = Batching(samples=50_000, micro_batch=128).epoch()
    expect_equal(
        answer,
        [epoch.micro_steps, epoch.last_micro_batch],
        "50,000 / 128 = 390.6: 390 full batches and a 391st with the remaining 80 samples",
        wants="two whole numbers: iterations and size of the last batch",
    )


@exercise(
    "1.2",
    kind="calculate",
    title="two counts",
    hints=("Who calls the scheduler: the micro-step or the update?", "One epoch: 100 updates."),
)
def _total_steps(answer: Any) -> None:
    updates = Batching(samples=1000, micro_batch=5, accumulation=2).epoch().updates
    expect_equal(
        answer,
        3 * updates,
        "a schedule advances once per update, and 3 epochs have 3 × 100 of them",
        wants="a whole number of scheduler steps",
    )


_GLOBAL_BATCH = "global_batch(micro_batch, accumulation, nodes, gpus, tp, pp, cp)"


@exercise(
    "1.3",
    kind="debug",
    title="the global batch",
    hints=(
        "GPUs that share one copy of the model work on the same samples.",
        "dp = nodes × gpus / (tp × pp × cp).",
    ),
)
def _global_batch(function: Any) -> None:
    expect_calls(
        function,
        [
            ((4, 8, 2, 8), 512, "pure data parallelism: 4 × 8 × 16 GPUs"),
            ((4, 8, 8, 8, 8, 4), 64, "32 of the 64 GPUs share one copy of the model, so dp is 2"),
            ((1, 1, 2, 8, 1, 1, 2), 8, "context parallel ranks share one sequence, so dp is 8"),
        ],
        signature=_GLOBAL_BATCH,
    )
    expect_raises(
        function,
        (4, 8, 1, 8, 3),
        ValueError,
        "8 processes do not form groups of tp = 3",
        signature=_GLOBAL_BATCH,
    )


@exercise(
    "1.4",
    kind="implement",
    title="who sees what",
    hints=(
        "How many samples does each rank get? ceil(samples / world).",
        "The i-th sample of a rank is number rank + world × i.",
        "Starting over is a remainder: % samples.",
    ),
)
def _my_samples(function: Any) -> None:
    cases = [
        ((samples, world, rank), rank_samples(samples, world, rank))
        for samples, world, rank in ((8, 2, 0), (8, 2, 1), (10, 4, 0), (10, 4, 3), (3, 8, 7))
    ]
    expect_calls(
        function,
        cases,
        "rank r takes samples r, r + world, …, starting over at 0 until all have equally many",
        signature="my_samples(samples, world, rank)",
    )


@exercise(
    "1.5",
    kind="debug",
    title="the same order every epoch",
    hints=(
        "Print the orders of two epochs.",
        "The sampler does not count epochs: see section 1.4.",
    ),
)
def _orders(function: Any) -> None:
    by_rank = [
        call(function, 12, 2, rank, 3, signature="orders(samples, world, rank, epochs)")
        for rank in range(2)
    ]
    for epochs in by_rank:
        expect_parts(epochs, 3, "a list with one list of sample numbers for each of 3 epochs")
        for order in epochs:
            expect_whole_numbers(order, "a list of sample numbers for each epoch")
    for epoch in range(3):
        seen = sorted(sample for epochs in by_rank for sample in epochs[epoch])
        expect_equal(seen, list(range(12)), "together the ranks see each sample once per epoch")
    if len({tuple(order) for order in by_rank[0]}) < 3:
        raise Wrong(
            "gave the same order twice in 3 epochs, expected 3 different ones because "
            "set_epoch(epoch) must tell the sampler which epoch it is"
        )


@exercise(
    "1.6",
    kind="predict",
    title="the ragged tail",
    hints=(
        "Go in this order: samples per rank, micro-batches, windows of 4.",
        "When nothing is dropped round up each time, when every tail is dropped round down.",
        "Dropped are all samples outside full windows: 1003 - updates × 4 × 8 × 4.",
    ),
)
def _tails(answer: Any) -> None:
    batching = Batching(samples=1003, gpus_per_node=4, micro_batch=8, accumulation=4)
    keep = batching.epoch()
    drop = replace(batching, drop_last=True).epoch()
    expect_parts(answer, 2, "two lists: kept and dropped")
    wants = "three whole numbers"
    expect_equal(
        answer[0],
        [keep.micro_steps, keep.updates, keep.repeated],
        "251 samples a rank (rounded up), 32 micro-batches, 8 windows, and 4 × 251 - 1003 repeated",
        wants=wants,
    )
    expect_equal(
        answer[1],
        [drop.micro_steps, drop.updates, drop.dropped],
        "250 samples a rank, 31 full micro-batches, 7 full windows of 4 = 28 micro-steps",
        wants=wants,
    )


@exercise(
    "1.7",
    kind="debug",
    title="batch 16384",
    hints=("Tokens per batch = sequences × tokens in a sequence.", "Your tokens / 4,194,304."),
)
def _tokens(answer: Any) -> None:
    batch = Batching(samples=16384, micro_batch=16384, sequence=4096)
    expect_equal(
        answer,
        [batch.tokens_per_batch, batch.tokens_per_batch / 4_194_304],
        "16384 × 4096 = 67,108,864 tokens",
        wants="two numbers: tokens and the ratio",
        rel=5e-3,
    )


@exercise(
    "1.8",
    kind="calculate",
    title="the most GPUs",
    hints=(
        "Every copy of the model needs at least one sequence.",
        "How many GPUs make one copy with tp 8 and pp 4?",
    ),
)
def _most_gpus(answer: Any) -> None:
    expect_equal(
        answer,
        [1024, 1024 * 8 * 4],
        "only dp is bounded by the batch, and world = dp × tp × pp",
        wants="two whole numbers of GPUs",
    )


QUIZ = (
    Question(
        "A log shows 400 steps for an epoch; accumulation is 4 and the log counts micro-steps. "
        "How many updates were there?",
        ("400", "100", "1600"),
        answer=1,
        why="Four micro-steps make one update: 400 / 4 = 100.",
    ),
    Question(
        "64 GPUs, tp 8, pp 2. How many different samples are worked on at once with micro-batch 1?",
        ("64", "8", "4"),
        answer=2,
        why="dp = 64 / (8 × 2) = 4; the other GPUs work on the same four samples.",
    ),
    Question(
        "You double the number of GPUs and keep micro-batch and accumulation. The epoch has …",
        ("as many updates", "half as many updates", "twice as many updates"),
        answer=1,
        why="The global batch doubles, so the same samples make half as many updates.",
    ),
    Question(
        "What does a missing set_epoch cause?",
        ("an error", "the same order in every epoch", "samples that are seen twice in an epoch"),
        answer=1,
        why="The order depends on seed + epoch; without the call the epoch stays 0.",
    ),
    Question(
        "Why does DistributedSampler repeat samples?",
        (
            "to make the ranks take equally many steps",
            "to mix the data better",
            "to fill the GPU's memory",
        ),
        answer=0,
        why="Ranks meet at every update; one that came once more would wait forever.",
    ),
)
