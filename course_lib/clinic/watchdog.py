"""What torch's watchdog writes when a call of NCCL takes too long: which call, on which rank.

Format: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, torch 2.4 and later (before, the sizes are
missing). On RCCL, of AMD and Hygon, torch writes the same words.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.clinic.sign import Sign, unreadable

_LINE = re.compile(
    r"\[Rank (\d+)\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+), NumelIn=(\d+), NumelOut=\d+, Timeout\(ms\)=(\d+)\)"
)


@dataclass(frozen=True)
class Timeout:
    """A call that took longer than `limit_s`: the `number` is the rank's own count of its calls."""

    rank: int
    number: int
    operation: str
    numbers_in: int
    limit_s: float

    @property
    def call(self) -> str:
        """What the rank called, in words."""
        return f"call {self.number}, {self.operation} of {self.numbers_in:,} numbers"


def timeouts(text: str) -> tuple[Timeout, ...]:
    """The first call of each rank that timed out. Raises ValueError for a text without one."""
    found: dict[int, Timeout] = {}
    for rank, number, operation, numbers_in, limit_ms in _LINE.findall(text):
        one = Timeout(int(rank), int(number), operation, int(numbers_in), int(limit_ms) / 1000)
        found.setdefault(one.rank, one)
    if not found:
        first = text.strip().splitlines()[0] if text.strip() else ""
        raise unreadable("torch", first, "'[Rank …] Watchdog caught collective operation timeout'")
    return tuple(found.values())


def timeout_signs(found: Sequence[Timeout]) -> list[Sign]:
    """Ranks that wait in different calls, or all in one; none without a timeout."""
    waiting: dict[str, list[int]] = {}
    for one in found:
        waiting.setdefault(one.call, []).append(one.rank)
    told = "; ".join(f"{_ranks(ranks)} in {call}" for call, ranks in waiting.items())
    if len(waiting) > 1:
        do = "look in the program for a branch that only some ranks take"
        unsaid = "which of them is wrong: compare the flight records"
        return [Sign(f"ranks wait in different calls: {told}", do, unsaid)]
    if not waiting:
        return []
    do = "look for a rank without such a line; if none is missing, test the network"
    unsaid = "what the missing rank does: ask py-spy, or the flight records"
    return [Sign(f"all waited for {found[0].limit_s:.0f} s: {told}", do, unsaid)]


def _ranks(ranks: Sequence[int]) -> str:
    *most, last = (str(rank) for rank in sorted(ranks))
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
