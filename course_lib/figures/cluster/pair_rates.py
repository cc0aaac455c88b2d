"""The rates of pairs of ranks as a grid, slow pairs marked."""

from collections.abc import Sequence

from course_lib.figures.engines.cells import Cell, cells
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_number
from course_lib.theory.network.pairwise import PairTest, SlowPart


def pair_rates(tests: Sequence[PairTest], found: SlowPart, title: str = "") -> Drawing:
    """One cell for each two ranks, in MB/s; `found` says which rate is slow and which is usual."""
    ranks = 1 + max(max(test.first, test.second) for test in tests)
    grid = {
        f"rank {a}": {
            f"rank {b}": Cell("", {0: "not tested"}) if a != b else Cell(slots=0)
            for b in range(ranks)
        }
        for a in range(ranks)
    }
    for test in tests:
        told = format_number(test.bytes_per_s / 1e6, 3 if ranks < 6 else 2)
        cell = Cell(told, {0: "slow" if found.is_slow(test) else "fast"})
        first, second = f"rank {test.first}", f"rank {test.second}"
        grid[first][second] = grid[second][first] = cell
    slow = sum(map(found.is_slow, tests))
    words = f"{slow} of {len(tests)} tested pairs of {ranks} ranks are slow: {found.explain()}"
    note = "MB/s between two ranks, one way"
    return cells(grid, title, note=note, said=words, gap=3.0, high=28.0)
