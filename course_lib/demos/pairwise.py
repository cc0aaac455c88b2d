"""Pairs of ranks send to each other, and the slow rank, link or half is named.

Run it with `course demo pairwise --ranks 4 --slow 2`, on two nodes joined by a slow link with
`course demo pairwise --ranks 4 --two-nodes 50`, or under torchrun on a cluster.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch
from course_lib.demos.shared.options import DemoOptions, option
from course_lib.theory.network.pairwise import SCHEDULES, PairTest, SlowPart, name_slow, rounds
from course_lib.validation import choice, number, whole


@dataclass(frozen=True)
class Options(DemoOptions):
    """What the demo can be asked for."""

    schedule: str = option("halving", "halving (log2 n rounds) or all (n - 1 rounds)")
    size_kib: int = option(256, "KiB that a pair sends one way")
    repeats: int = option(10, "times that a pair sends; the fastest counts")
    passes: int = option(6, "times that all pairs are tested; the fastest counts")
    slow: str = option("none", "what is made slow: none, a rank such as 2, or a pair such as 0-2")
    slow_ms: float = option(20.0, "how late the slow one sends, in ms")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("schedule", self.schedule, SCHEDULES)
        whole("size_kib", self.size_kib, most=2**20)
        whole("repeats", self.repeats, most=1000)
        whole("passes", self.passes, most=100)
        number("slow_ms", self.slow_ms, least=0, most=10_000)
        self.is_slow(0, 1)

    def is_slow(self, sender: int, partner: int) -> bool:
        """Whether `sender` is to be late when it sends to `partner`."""
        names = self.slow.split("-") if self.slow != "none" else []
        if len(names) > 2 or not all(name.isdigit() for name in names):
            raise ValueError(f"slow {self.slow!r} is no rank and no pair: write none, 2, or 0-2")
        if len(names) == 1:
            return sender == int(names[0])
        return bool(names) and {sender, partner} == {int(name) for name in names}


@dataclass(frozen=True)
class Result:
    """All tests of pairs, and what they name."""

    ranks: int
    rounds: int
    tests: list[PairTest]
    found: SlowPart

    def report(self) -> str:
        """A matrix of rates, and the sentence."""
        rates = {(test.first, test.second): test.bytes_per_s / 1e6 for test in self.tests}
        lines = ["MB/s, one way" + "".join(f"{rank:>9}" for rank in range(self.ranks))]
        for first in range(self.ranks - 1):
            cells = (rates.get((first, second)) for second in range(self.ranks))
            told = "".join(f"{cell:>9.1f}" if cell else f"{'':>9}" for cell in cells)
            lines.append(f"{first:>13}{told}".rstrip())
        count = f"{len(self.tests)} pairs of {self.ranks} ranks in {self.rounds} rounds"
        return "\n".join([*lines, f"{count}: {self.found.explain()}"])


def main(options: Options) -> Result:
    """Test the pairs of each round at once; every rank returns the same."""
    rank = launch.init()
    plan = rounds(rank.world, options.schedule)
    data = torch.ones(options.size_kib * 1024, dtype=torch.uint8, device=rank.device)
    fastest: dict[tuple[int, int], float] = {}
    for pairs in plan * options.passes:  # later again: what else runs here comes and goes
        dist.barrier()
        for first, second in pairs:
            if rank.rank in (first, second):
                seconds = _one_way_s(data, rank.rank, first + second - rank.rank, options)
                fastest[first, second] = min(seconds, fastest.get((first, second), seconds))
    gathered: list[dict[tuple[int, int], float]] = [{} for _ in range(rank.world)]
    dist.all_gather_object(gathered, fastest)
    # Both ends timed each pair: keep what the first one says.
    tests = [
        PairTest(*pair, data.nbytes / seconds)
        for who, own in enumerate(gathered)
        for pair, seconds in sorted(own.items())
        if pair[0] == who
    ]
    return Result(rank.world, len(plan), tests, name_slow(tests))


def _one_way_s(data: Tensor, rank: int, partner: int, options: Options) -> float:
    """Half of the time there and back, the fastest of the repeats."""
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
