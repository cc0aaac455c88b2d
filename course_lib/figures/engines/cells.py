"""A grid of cells: who holds what. Rows are parts, columns are those who hold them, or turned."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow_lines
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import width_pt

_HEAD, _BETWEEN, _BELOW = 16.0, 5.0, 11.0
Place = tuple[str, str]  # row, column


class Cell(NamedTuple):
    """`filled`: {slot: what is in it}, of `slots` side by side, or one below the other.

    `frame`: a word whose colour frames the cell, such as "messages" for what has just come.
    `dots`: slots with a dot in the colour of `dot`.
    """

    text: str = ""
    filled: Mapping[int, str] = {}
    slots: int = 1
    upright: bool = False  # slots below one another
    frame: str = ""
    dots: Collection[int] = ()
    dot: str = "update"
    bold: bool = False


Grid = Mapping[str, Mapping[str, Cell]]


class Cells:
    """{row: {column: Cell}} as a block; a row without cells is a heading of those that follow.

    `arrows` go from cell to cell; one to an earlier column of the same row goes round the edge.
    `below`: texts stand below their cells. `bold`: rows that are at work.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        arrows: Sequence[tuple[Place, Place]] = (),
        high: float | Mapping[str, float] = 20.0,
        below: bool = False,
        bold: Collection[str] = (),
        gap: float | None = None,
        note: str = "",
    ) -> None:
        self.grid, self.arrows, self.below, self.bold = grid, arrows, below, bold
        self.note = note  # what the texts in the cells mean, above them
        self.columns = list(dict.fromkeys(name for row in grid.values() for name in row))
        self.left = max((width_pt(row, 9) for row in grid if grid[row]), default=0.0) + 14
        self.gap = gap if gap is not None else 30.0 if arrows else 6.0
        self.pitch = (WIDTH_PT - self.left) / max(1, len(self.columns))
        self.high = {
            row: high if isinstance(high, int | float) else high.get(row, 20.0) for row in grid
        }

    @property
    def height_pt(self) -> float:
        """The head, and all rows."""
        head = _HEAD * any(self.columns) + (14.0 if self.note else 0.0)
        return head + sum(self._row_height(row) for row in self.grid)

    @property
    def words(self) -> Iterable[str]:
        """What is in the cells."""
        cells = [cell for row in self.grid.values() for cell in row.values()]
        return dict.fromkeys(word for cell in cells for word in cell.filled.values())

    @property
    def sentence(self) -> str:
        """Who holds what, and what goes where."""
        said = [f"{row}: {self._said(its)}" for row, its in self.grid.items() if its]
        said += [f"{row} goes from {a} to {b}" for (row, a), (_, b) in self.arrows]
        return "; ".join(said)

    def _said(self, its: Mapping[str, Cell]) -> str:
        """Neighbours with the same content in one piece: "rank 0, rank 1: whole"."""
        told: dict[str, list[str]] = {}
        for column, cell in its.items():
            told.setdefault(_content(cell), []).append(column)
        return ", ".join(f"{', '.join(names)} {content}" for content, names in told.items())

    def _row_height(self, row: str) -> float:
        if not self.grid[row]:
            return 18.0
        return self.high[row] + (_BELOW if self.below else 0.0) + _BETWEEN

    def draw(self, drawing: Drawing, top: float) -> None:
        """Column heads, then row by row: cells of one look at once."""
        if self.note:
            drawing.write(0, top + 9, self.note, 9, colour=style.GREY)
            top += 14
        width = self.pitch - self.gap
        x = {
            name: self.left + place * self.pitch + self.gap / 2
            for place, name in enumerate(self.columns)
        }
        heads = [(x[name] + width / 2, top + 9, name) for name in self.columns if name]
        if heads:
            drawing.write_all(heads, 9, "center", bold=True)
        y, tops = top + _HEAD * bool(heads), {}
        for row, its in self.grid.items():
            tops[row] = y
            if its:
                ink = style.INK if row in self.bold or not self.bold else style.GREY
                middle = y + self.high[row] / 2 + 3.3
                drawing.write(self.left - 8, middle, row, 9, "right", ink, row in self.bold)
                boxes = {name: (x[name], y, width, self.high[row]) for name in its}
                self._cells(drawing, its, boxes)
            else:
                drawing.write(0, y + 13, row, 9, bold=True)
            y += self._row_height(row)
        self._arrows(drawing, x, tops, width)

    def _cells(self, drawing: Drawing, its: Mapping[str, Cell], boxes: Mapping[str, Box]) -> None:
        drawing.boxes(boxes.values(), style.WHITE, edge=style.GREY)
        looks: dict[str, list[Box]] = {}
        for name, cell in its.items():
            for slot, word in cell.filled.items():
                looks.setdefault(word, []).append(_slot(boxes[name], cell, slot))
        for word, filled in looks.items():
            fill, hatch = style.meaning(word)
            drawing.boxes(
                _joined(filled), fill, hatch, edge=fill if len(filled) > 40 else style.INK
            )
        for name, cell in its.items():
            x, y, wide, high = boxes[name]
            if cell.frame:
                colour = style.meaning(cell.frame)[0]
                corners = [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)]
                drawing.line(corners, colour, 2.5)
            dots = [_middle(_slot(boxes[name], cell, slot)) for slot in cell.dots]
            if dots:
                colour = style.meaning(cell.dot)[0]
                drawing.boxes([(a - 2, b - 2, 4, 4) for a, b in dots], colour, edge=colour)
            if cell.text:
                inside = cell.filled.get(0) if cell.slots == 1 and not self.below else None
                ink = style.on(style.meaning(inside)[0]) if inside else style.INK
                base = y + high + 9 if self.below else y + high / 2 + 3.3
                size = 9 if width_pt(cell.text, 9) <= wide + 4 else 7.5
                drawing.write(x + wide / 2, base, cell.text, size, "center", ink, cell.bold)

    def _arrows(
        self, drawing: Drawing, x: Mapping[str, float], tops: Mapping[str, float], width: float
    ) -> None:
        lines = []
        for (row, start), (end_row, end) in self.arrows:
            a, b = (tops[name] + self.high[name] / 2 for name in (row, end_row))
            if x[end] > x[start]:
                lines += arrow_lines((x[start] + width + 3, a), (x[end] - 3, b))
            elif row == end_row:  # round the edge
                lines.append([(x[start] + width + 3, a), (WIDTH_PT, a)])
                lines += arrow_lines((self.left - 4, a), (x[end] - 3, a))
            elif x[end] < x[start]:
                lines += arrow_lines((x[start] - 3, a), (x[end] + width + 3, b))
            else:
                sign = 1 if b > a else -1
                middle = x[start] + width / 2
                half, end_half = self.high[row] / 2 + 2, self.high[end_row] / 2 + 2
                lines += arrow_lines((middle, a + sign * half), (middle, b - sign * end_half))
        drawing.lines(lines, style.MESSAGES, 2.5)


def cells(grid: Grid, title: str = "", *, notes: Sequence[str] = (), **more: object) -> Drawing:
    """One grid as a picture; `more` is for `Cells`."""
    return page(title, Cells(grid, **more), notes=notes)  # type: ignore[arg-type]


def _content(cell: Cell) -> str:
    kinds = dict.fromkeys(cell.filled.values())
    full = len(cell.filled) == cell.slots
    parts = "" if cell.slots == 1 or full else f"{len(cell.filled)} of {cell.slots} parts of "
    return " ".join(filter(None, [parts + " and ".join(kinds), cell.text])) or "nothing"


def _slot(box: Box, cell: Cell, slot: int) -> Box:
    x, y, wide, high = box
    if cell.upright:
        return x, y + high * slot / cell.slots, wide, high / cell.slots
    return x + wide * slot / cell.slots, y, wide / cell.slots, high


def _joined(boxes: Sequence[Box]) -> list[Box]:
    """Neighbours in a row in one piece."""
    found: list[Box] = []
    for box in boxes:
        if found and found[-1][1::2] == box[1::2]:
            x, y, wide, high = found[-1]
            if abs(x + wide - box[0]) < 0.01:
                found[-1] = (x, y, wide + box[2], high)
                continue
        found.append(box)
    return found


def _middle(box: Box) -> tuple[float, float]:
    return box[0] + box[2] / 2, box[1] + box[3] / 2
