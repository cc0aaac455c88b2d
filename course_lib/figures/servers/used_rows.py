"""The rows of a table, and which of them a batch uses."""

from collections.abc import Sequence

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted, width_pt

_BOX, _ROOM = 46.0, 116.0  # of a look-up, and of all that stands left of the table


class _Table(Cells):
    """The table, and left of it a box for each look-up, with a line to its row."""

    looked_up: Sequence[int] = ()

    def _across(self) -> tuple[dict[str, float], dict[str, float]]:
        self.left += _ROOM
        return super()._across()

    def draw(self, drawing: Drawing, top: float) -> None:
        super().draw(drawing, top)
        pitch = self._row_height("row 0")
        top += self.height_pt - pitch * len(self.grid)
        apart = min(pitch, pitch * len(self.grid) / len(self.looked_up))
        ends = [(top + apart * place + 10, row) for place, row in enumerate(self.looked_up)]
        names = self.left - 12 - max(width_pt(name, 9) for name in self.grid)
        middle = top + self.high["row 0"] / 2
        lines = [[(_BOX, y), (names, middle + pitch * row)] for y, row in ends]
        drawing.lines(lines, style.GREY)
        drawing.boxes([(0, y - 8, _BOX, 16.0) for y, _ in ends], style.PALE, edge=style.GREY)
        texts = [(_BOX / 2, y + 3.3, str(row)) for y, row in ends]
        drawing.write_all(texts, 9, "center")


def used_rows(
    looked_up: Sequence[int], gradient: Sequence[Sequence[float]], title: str = ""
) -> Drawing:
    """Left: the rows that a batch looks up. Right: the table's `gradient`, zeros pale."""
    grid = {}
    for row, values in enumerate(gradient):
        used = [*looked_up].count(row)
        grid[f"row {row}"] = {
            str(column): Cell(f"{value:g}", {0: "gradient" if value else "zero"})
            for column, value in enumerate(values)
        } | {"used": Cell(f"used {counted(used, 'time')}" if used else "", slots=0)}
    told = f"{counted(len(looked_up), 'look-up')}: rows {', '.join(map(str, looked_up))}"
    high = max(20, 18 * len(looked_up) / len(grid) - 5)  # room for all look-ups
    table = _Table(grid, heads=False, high=high, note=f"{told}; right, the table's gradient")
    table.looked_up = looked_up
    return page(title, table)
