"""Launch after launch, half of them sabotaged at random: nothing is ever left over.

Eight launches by default. `pytest tests/launch/test_sabotage.py -m slow -n 0` runs two hundred.
"""

import collections
import random
import time
from dataclasses import dataclass
from pathlib import Path

import faults
import pytest
from leftovers import folders_in, needs_signals, our_ranks

from course_lib import launch

HANG_S = 1.0  # the limit of a launch that hangs
LIMIT_S = 60.0
SABOTAGES = {
    "raise": faults.raise_error,
    "SIGKILL": faults.kill,
    "hang": faults.hang,
    "exit": faults.leave,
    "mismatched collective": faults.other_collective,
    "huge allocation": faults.huge_tensor,
}


@dataclass
class Tally:
    """What happened in many launches."""

    kinds: collections.Counter[str]
    seconds: float = 0.0
    wrong: int = 0  # a fault not noticed, or the wrong rank named
    processes: int = 0
    folders: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())
        return (
            f"{self.kinds.total()} launches in {self.seconds:.0f} s ({counts}): "
            f"{self.wrong} wrong, {self.processes} processes and {self.folders} folders left"
        )


def sabotaged(count: int, folder: Path, seed: int = 0) -> Tally:
    """`count` launches on 2 or 3 ranks, half of them sabotaged, in an order that `seed` gives."""
    draw, tally = random.Random(seed), Tally(collections.Counter())
    names = list(SABOTAGES)
    plan = ["none"] * (count - count // 2) + [names[i % len(names)] for i in range(count // 2)]
    draw.shuffle(plan)
    start_s = time.monotonic()
    for kind in plan:
        ranks = draw.choice((2, 3))
        tally.kinds[kind] += 1
        tally.wrong += not as_expected(kind, ranks, draw.randrange(ranks))
        tally.processes += len(our_ranks())
        tally.folders += len(folders_in(folder))
    tally.seconds = time.monotonic() - start_s
    return tally


def as_expected(kind: str, ranks: int, bad: int) -> bool:
    """Run one launch; False if a fault went unnoticed, was no fault, or named an innocent rank."""
    run = SABOTAGES.get(kind, faults.nothing)
    limit_s = HANG_S if kind == "hang" else LIMIT_S
    checked = kind == "mismatched collective"
    try:
        results = launch.run(
            run, bad, ranks=ranks, timeout_s=limit_s, stream=False, check_collectives=checked
        )
    except launch.RankFailed as error:
        either = kind in ("hang", "mismatched collective")
        return kind != "none" and (either or error.rank == bad)
    return kind == "none" and results == [ranks] * ranks


@needs_signals
def test_a_few_sabotaged_launches_leave_nothing(tmp_path: Path) -> None:
    tally = sabotaged(8, tmp_path / "temporary", seed=1)
    assert (tally.wrong, tally.processes, tally.folders) == (0, 0, 0), str(tally)


@needs_signals
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_launches_half_of_them_sabotaged_leave_nothing(tmp_path: Path) -> None:
    tally = sabotaged(200, tmp_path / "temporary")
    print(tally)
    assert (tally.wrong, tally.processes, tally.folders) == (0, 0, 0), str(tally)
