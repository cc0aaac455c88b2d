"""The calls of several ranks by number, and the first number at which they differ."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing


def flight_records(calls: Mapping[str, Sequence[str]], title: str = "") -> Drawing:
    """{"rank 0": ["4 × 4", "2 × 2"], …}: one row for each rank, one column for each call."""
    columns = list(zip_longest(*calls.values()))
    parted = next((n for n, column in enumerate(columns, 1) if len(set(column)) > 1), 99)
    grid = {
        rank: {
            str(n): Cell(
                call, {0: "alike" if n < parted else "differs" if n == parted else "after it"}
            )
            for n, call in enumerate(its, 1)
        }
        for rank, its in calls.items()
    }
    return page(title, Cells(grid, high=24.0))
