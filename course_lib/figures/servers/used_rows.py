"""The rows of a table, and which of them a batch uses."""

from collections.abc import Sequence

from course_lib.figures.engines.cells import Cell, cells
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted


def used_rows(
    looked_up: Sequence[int], gradient: Sequence[Sequence[float]], title: str = ""
) -> Drawing:
    """The table's `gradient`, zeros pale, and how often a batch looks up each of its rows."""
    grid = {}
    for row, values in enumerate(gradient):
        used = [*looked_up].count(row)
        cell = {
            str(column): Cell(f"{value:g}", {0: "gradient" if value else "zero"})
            for column, value in enumerate(values)
        }
        grid[f"row {row}\nused {counted(used, 'time')}" if used else f"row {row}"] = cell
    note = f"{counted(len(looked_up), 'look-up')}: rows {', '.join(map(str, looked_up))}"
    return cells(grid, title, heads=False, note=note)
