"""Every technique beside its library: `python benchmarks/practice.py [--ranks 2] [--launches 5]`.

Each demo is launched several times; a launch trains all versions of its technique one after the
other. The table has the median over launches of the ratio of their times, so that a noisy machine
disturbs both alike. Demos check by themselves that versions are equal to one process, and that
collectives and stored bytes are as predicted: a row stands here only if they are.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from course_lib import demos
from course_lib.demos.shared.comparison import Version
from course_lib.demos.shared.result import Result, loss_gaps


class Pair(NamedTuple):
    """A version written by hand and its library, in the result of a demo."""

    demo: str
    scratch: str
    library: str
    options: dict[str, object]
    label: str = ""


LONG = {"steps": 20}
PAIRS = [
    Pair("multi_device", "DDP by hand", "DistributedDataParallel", LONG),
    Pair("checkpointing", "checkpointing by hand", "torch.utils.checkpoint", LONG),
    Pair("zero", "stage 1 from scratch", "ZeroRedundancyOptimizer, stage 1", LONG),
    Pair("fsdp", "mini-FSDP", "fully_shard", LONG),
    Pair("tp", "from scratch", "parallelize_module", LONG),
    Pair(
        "tp",
        "from scratch",
        "parallelize_module",
        {**LONG, "sequence_parallel": True},
        "tp, sequence parallel",
    ),
    Pair("pipeline", "scratch gpipe", "torch gpipe", {"steps": 10}),
    Pair("pipeline", "scratch 1f1b", "torch 1f1b", {"steps": 10}),
    Pair("pipeline", "scratch interleaved", "torch interleaved", {"steps": 10}),
    Pair("experts", "by hand", "torch: all-to-all, DDP", LONG),
    Pair("context", "ring", "torch: all-gather, DDP", LONG),
    Pair("parameter_server", "parameter server", "torch: dense table, DDP", LONG),
]


def rows(ranks: int, launches: int) -> Iterator[str]:
    """One line of Markdown for each pair."""
    for pair in PAIRS:
        found = [versions(pair, ranks) for _ in range(launches)]
        _, (ours, theirs) = found[0]
        ratio = statistics.median(a.seconds / b.seconds for _, (a, b) in found)
        yield (
            f"| {pair.label or pair.demo}: {ours.name} | {theirs.name} | {equal(*found[0])} | "
            f"{sent(ours)} | {ratio:.2f} |"
        )


def versions(pair: Pair, ranks: int) -> tuple[Result, list[Version]]:
    """The result of one launch, and the two versions that `pair` names."""
    result = demos.run(pair.demo, ranks=ranks, stream=False, **pair.options)
    known = {version.name: version for version in result.versions}
    return result, [known[name] for name in (pair.scratch, pair.library)]


def equal(result: Result, pair: list[Version]) -> str:
    """The largest difference of both from one process: losses, first gradient."""
    losses = max(
        gap for version in pair for gap in loss_gaps(version.losses, result.losses_one_process)
    )
    gaps = [v.gradient_difference for v in pair if v.gradient_difference is not None]
    return f"{losses:.0e}, {max(gaps):.0e}" if gaps else f"{losses:.0e}"


def sent(version: Version) -> str:
    """Collectives of an update, which are those predicted."""
    return "; ".join(
        f"{calls} × {operation} {size:,} B" for operation, (calls, size) in version.sent.items()
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=5)
    arguments = parser.parse_args()
    print("| by hand | library | off by (loss, gradient) | sent, as predicted | time ÷ library |")
    print("|---|---|---|---|---|")
    for row in rows(arguments.ranks, arguments.launches):
        print(row, flush=True)
