"""Pairs of ranks send to each other, and the slow rank, link or half is named.

Run it with `course demo pairwise --ranks 4 --slow 2`, on two nodes joined by a slow link with
`course demo pairwise --ranks 4 --two-nodes 50`, or under torchrun on a cluster.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch
from course_lib.chapters.ch16_cluster_clinic.pairwise import SCHEDULES, PairTest, name_slow, rounds
from course_lib.demos.shared.options import DemoOptions, option
from course_lib.demos.shared.ranks import from_all_ranks
from course_lib.demos.shared.result import Result


@dataclass(frozen=True)
class Options(DemoOptions):
    """The options of the demo."""

    schedule: str = option(
        "halving", "halving (log2 n rounds) or all (n - 1 rounds)", among=SCHEDULES
    )
    size_kib: int = option(256, "KiB that a pair sends one way", least=1, most=2**20)
    repeats: int = option(10, "times that a pair sends; the fastest counts", least=1, most=1000)
    passes: int = option(
        6, "times that all pairs are tested; the fastest counts", least=1, most=100
    )
    slow: str = option("none", "what is made slow: none, a rank such as 2, or a pair such as 0-2")
    slow_ms: float = option(20.0, "how late the slow one sends, in ms", least=0, most=10_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_slow(0, 1)

    def is_slow(self, sender: int, partner: int) -> bool:
        """Whether `sender` should be delayed when it sends to `partner`."""
        names = self.slow.split("-") if self.slow != "none" else []
        if len(names) > 2 or not all(name.isdigit() for name in names):
            raise ValueError(f"slow {self.slow!r} is no rank and no pair: write none, 2, or 0-2")
        if len(names) == 1:
            return sender == int(names[0])
        return bool(names) and {sender, partner} == {int(name) for name in names}


def main(options: Options) -> Result:
    """Test all pairs of a round at the same time; every rank returns the same result."""
    rank = launch.init()
    plan = rounds(rank.world, options.schedule)
    data = torch.ones(options.size_kib * 1024, dtype=torch.uint8, device=rank.device)
    fastest: dict[tuple[int, int], float] = {}
    for pairs in plan * options.passes:  # repeat later, since other load comes and goes
        dist.barrier()
        for first, second in pairs:
            if rank.rank in (first, second):
                seconds = _one_way_s(data, rank.rank, first + second - rank.rank, options)
                fastest[first, second] = min(seconds, fastest.get((first, second), seconds))
    # Both ranks of a pair timed it: keep the time of the first.
    tests = [
        PairTest(*pair, data.nbytes / seconds)
        for timer, own in enumerate(from_all_ranks(fastest))
        for pair, seconds in sorted(own.items())
        if pair[0] == timer
    ]
    found = name_slow(tests)
    count = f"{len(tests)} pairs of {rank.world} ranks in {len(plan)} rounds"
    return Result(
        *_matrix(tests, rank.world),
        f"{count}: {found.explain()}",
        rounds=len(plan),
        tests=tests,
        found=found,
    )


def _matrix(tests: Sequence[PairTest], ranks: int) -> Iterator[str]:
    """Yield the lines of a table with the rate of each pair, in MB/s."""
    rates = {(test.first, test.second): test.bytes_per_s / 1e6 for test in tests}
    yield "MB/s, one way" + "".join(f"{rank:>9}" for rank in range(ranks))
    for first in range(ranks - 1):
        cells = (rates.get((first, second)) for second in range(ranks))
        shown = "".join(f"{cell:>9.1f}" if cell else f"{'':>9}" for cell in cells)
        yield f"{first:>13}{shown}".rstrip()


def _one_way_s(data: Tensor, rank: int, partner: int, options: Options) -> float:
    """Half of the round-trip time in seconds, the fastest of the repeats."""
    times = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        if rank < partner:
            _send(data, rank, partner, options)
            dist.recv(data, partner)
        else:
            dist.recv(data, partner)
            _send(data, rank, partner, options)
        if data.device.type == "cuda":
            torch.cuda.synchronize(data.device)
        times.append((time.perf_counter() - start) / 2)
    return min(times)


def _send(data: Tensor, rank: int, partner: int, options: Options) -> None:
    if options.is_slow(rank, partner):
        time.sleep(options.slow_ms / 1000)
    dist.send(data, partner)
