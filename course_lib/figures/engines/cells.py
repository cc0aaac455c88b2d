"""A grid of cells that shows who holds what: rows are parts and columns holders, or vice versa."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import (
    WIDTH_PT,
    Box,
    Drawing,
    Point,
    arrow_lines,
    joined,
    width_pt,
)

_LINE, _BELOW, _STRIPE, _APART = 13.0, 11.0, 5.0, 12.0
_SIZES = (9.0, 7.5, 6.5)
_MOST_TOLD, _LONGEST = 8, 900  # limits of the sentence: distinct cells of a row, letters
Place = tuple[str, str]  # row, column
Words = str | tuple[str, ...]


class Cell(NamedTuple):
    """One cell: `filled` maps slot numbers to words, whose meaning sets the colour.

    The `slots` are laid out in rows of `across` (0: all side by side, 1: one below another). A slot
    with several words, such as a sum over ranks, has a stripe for each. `text` is centred in the
    cell, `texts` in slots, where they fit. `wide`: columns spanned. `frame`: a word whose colour
    frames the cell, such as "messages" for data just received. `dots`: slots with a dot in the
    colour of an update. A cell without slots is text only.
    """

    text: str = ""
    filled: Mapping[int, Words] = {}
    slots: int = 1
    across: int = 0
    texts: Mapping[int, str] = {}
    wide: int = 1
    frame: str = ""
    dots: Collection[int] = ()
    bold: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        """(rows, columns) of slots."""
        across = self.across or self.slots or 1
        return -(-self.slots // across), across


Grid = Mapping[str, Mapping[str, Cell]]


class Cells:
    """A block that draws {row: {column: Cell}}; a row without cells is a section heading.

    Row name "stage 1\\n2 GPUs": the second line is grey. Column name "node 0\\nGPU 3": neighbours
    with the same first lines form a group, with these lines as its heading.
    `arrows` connect cells; one to a much earlier column of the same row wraps around the edge.
    `past`: earlier arrows, thin and grey. `said`: replaces the cells in the sentence. `square`:
    slots are squares of this size in points, as for a matrix. `lined`: outline each slot (default:
    for squares only). `between`: the gap between rows. `below`: texts are below their cells.
    `bold`: active rows and columns. `note`: a grey line above the grid. `looks`: looks of words
    that `style.meaning` does not know.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        arrows: Sequence[tuple[Place, Place]] = (),
        past: Sequence[tuple[Place, Place]] = (),
        said: str = "",
        high: float | Mapping[str, float] = 20.0,
        square: float = 0.0,
        lined: bool | None = None,
        below: bool = False,
        bold: Collection[str] = (),
        heads: bool = True,
        gap: float | None = None,
        between: float = 5.0,
        note: str = "",
        looks: Mapping[str, style.Look] = {},
    ) -> None:
        self.grid, self.arrows, self.below, self.bold = grid, arrows, below, bold
        self.past, self.said, self.note, self.square = past, said, note, square
        self.lined = bool(square) if lined is None else lined
        self.looks = {word: (fill, hatch and hatch[0]) for word, (fill, hatch) in looks.items()}
        self.columns = list(dict.fromkeys(name for row in grid.values() for name in row))
        self.heads = max((name.count("\n") + 1 for name in self.columns), default=0) * (
            heads and any(self.columns)
        )
        lines = [line for row in grid if grid[row] for line in row.split("\n")]
        self.left = max((width_pt(line, 9) for line in lines), default=0.0) + 14
        self.between = between
        self.gap = gap if gap is not None else 30.0 if arrows else 6.0
        self.high = {
            row: self._high(cells, high if isinstance(high, int | float) else high.get(row, 20.0))
            for row, cells in grid.items()
        }
        self.x, self.width = self._across()

    def _high(self, cells: Mapping[str, Cell], high: float) -> float:
        if not self.square:
            return high
        return max((cell.sizes[0] * self.square for cell in cells.values()), default=0.0)

    def _across(self) -> tuple[dict[str, float], dict[str, float]]:
        """The left edge and the width of each column."""
        groups = [name.rpartition("\n")[0] for name in self.columns]
        new = [bool(p) and groups[p] != groups[p - 1] for p in range(len(groups))]
        room = WIDTH_PT - self.left - _APART * sum(new)
        pitch = room / max(1, len(self.columns))
        width = {name: pitch - self.gap for name in self.columns}
        gaps = self.gap
        if self.square:
            width = {
                name: self.square
                * max(row[name].sizes[1] for row in self.grid.values() if name in row)
                for name in self.columns
            }
            gaps = min((room - sum(width.values())) / max(1, len(width)), 6 * self.square)
        self.apart = gaps  # columns
        x, at = {}, self.left + (0.0 if self.square else gaps / 2)
        for name, begins in zip(self.columns, new, strict=True):
            at += _APART * begins
            x[name] = at
            at += width[name] + gaps
        return x, width

    @property
    def height_pt(self) -> float:
        """Height of the head and all rows."""
        head = _LINE * self.heads + 3 * bool(self.heads) + 14 * bool(self.note)
        return head + sum(self._row_height(row) for row in self.grid)

    @property
    def words(self) -> Iterable[str]:
        """The words that occur in the cells."""
        cells = [cell for row in self.grid.values() for cell in row.values()]
        return dict.fromkeys(
            one for cell in cells for word in cell.filled.values() for one in _several(word)
        )

    @property
    def sentence(self) -> str:
        """A description of all cells and arrows, cut to a limited length."""
        rows = {_flat(row): self._said(its) for row, its in self.grid.items()}
        said = [self.said] if self.said else [f"{row}: {its}" for row, its in rows.items() if its]
        said += [
            f"{_flat(row)} goes from {a} to {b}" if row == end else f"{a} to {b} in {_flat(end)}"
            for (row, a), (end, b) in self.arrows
        ]
        lengths = accumulate(map(len, said))
        most = max(1, sum(length < _LONGEST for length in lengths))
        more = f"and {len(said) - most} more" if len(said) > most else ""
        return "; ".join(filter(None, [self.note.rstrip("."), *said[:most], more]))

    def _said(self, cells: Mapping[str, Cell]) -> str:
        """One row, with equal columns grouped ("rank 0, rank 1 whole"), up to a limit."""
        columns: dict[str, list[str]] = {}
        for column, cell in cells.items():
            if cell.slots or cell.text:
                lines = column.split("\n")
                name = " ".join(dict.fromkeys((lines[0], lines[-1]))) if self.heads else ""
                columns.setdefault(_content(cell), []).append(name)
        parts = [
            f"{_listed(names)} {content}".strip()
            for content, names in list(columns.items())[:_MOST_TOLD]
        ]
        return ", ".join([*parts, *["…"] * (len(columns) > _MOST_TOLD)])

    def _row_height(self, row: str) -> float:
        if not self.grid[row]:
            return 18.0
        high = max(self.high[row], 26.0 if "\n" in row else 0.0)
        return high + (_BELOW if self.below else 0.0) + self.between

    def draw(self, drawing: Drawing, top: float) -> None:
        """Draw headings, row names, outlines, fills, texts and arrows, in this order."""
        if self.note:
            drawing.write(0, top + 9, self.note, 9, colour=style.GREY)
            top += 14
        self._draw_heads(drawing, top)
        y = top + _LINE * self.heads + 3 * bool(self.heads)
        tops: dict[str, float] = {}
        boxes: list[tuple[Cell, Box]] = []
        for row, its in self.grid.items():
            tops[row] = y
            self._name(drawing, row, y)
            boxes += [(cell, self._box(name, cell, y, row)) for name, cell in its.items()]
            y += self._row_height(row)
        self._draw_cells(drawing, boxes)
        self._draw_texts(drawing, boxes)
        drawing.lines(self._lines(self.past, tops), style.GREY, 0.8)
        drawing.lines(self._lines(self.arrows, tops), style.MESSAGES, 2.5)

    def _box(self, column: str, cell: Cell, y: float, row: str) -> Box:
        if self.square:
            rows, across = cell.sizes
            high = rows * self.square
            return self.x[column], y + (self.high[row] - high) / 2, across * self.square, high
        place = self.columns.index(column)
        end = self.columns[place + cell.wide - 1]
        return self.x[column], y, self.x[end] + self.width[end] - self.x[column], self.high[row]

    def _draw_heads(self, drawing: Drawing, top: float) -> None:
        if not self.heads:
            return
        if self.heads > 1:
            over: dict[str, list[str]] = {}
            for name in self.columns:
                over.setdefault(name.rpartition("\n")[0], []).append(name)
            for group, names in over.items():
                left, right = self.x[names[0]], self.x[names[-1]] + self.width[names[-1]]
                for line, text in enumerate(group.split("\n")):
                    middle, y = (left + right) / 2, top + 9 + _LINE * line
                    ink = style.GREY if line else style.INK
                    drawing.write(middle, y, text, 9, "center", ink, not line)
        lowest = [name.rpartition("\n")[2] for name in self.columns]
        size = min(
            _size(text, self.width[name] + self.apart - 2) or 6.5
            for text, name in zip(lowest, self.x, strict=True)
        )
        y = top + 9 + _LINE * (self.heads - 1)
        working = [name for name in self.x if name in self.bold]
        for bold in (True, False):
            heads = [
                (self.x[name] + self.width[name] / 2, y, text)
                for text, name in zip(lowest, self.x, strict=True)
                if text and (name in working if working else self.heads == 1) == bold
            ]
            if heads:
                ink = style.GREY if working and not bold else style.INK
                drawing.write_all(heads, size, "center", ink, bold)

    def _name(self, drawing: Drawing, row: str, y: float) -> None:
        if not self.grid[row]:
            drawing.write(0, y + 13, row, 9, bold=True)
            return
        name, _, second = row.partition("\n")
        ink = style.INK if row in self.bold or not self.bold else style.GREY
        middle = y + self.high[row] / 2 + (-2.5 if second else 3.3)
        drawing.write(self.left - 8, middle, name, 9, "right", ink, row in self.bold)
        if second:
            drawing.write(self.left - 8, middle + 11.5, second, 9, "right", style.GREY)

    def _draw_cells(self, drawing: Drawing, boxes: Sequence[tuple[Cell, Box]]) -> None:
        """Draw outlines first, then the fills of all slots, grouped by look."""
        outlines = [
            box
            for cell, box in boxes
            if cell.slots > 1 or (cell.slots and not isinstance(cell.filled.get(0), str))
        ]
        if self.lined:
            outlines = [_slot(box, cell, slot) for cell, box in boxes for slot in range(cell.slots)]
        drawing.boxes(outlines, style.WHITE, edge=style.GREY)
        looks: dict[str, list[Box]] = {}
        for cell, box in boxes:
            for slot, words in cell.filled.items():
                several, place = _several(words), _slot(box, cell, slot)
                for number, word in enumerate(several):
                    looks.setdefault(word, []).append(
                        _stripe(place, number, len(several)) if len(several) > 1 else place
                    )
        for word, filled in looks.items():
            fill, hatch = self._look(word)
            filled = filled if self.lined else _joined(filled)
            thin = min(min(box[2:]) for box in filled) < 3  # an outline would hide its colour
            edge = fill if thin or len(filled) > 200 else style.INK
            edge = style.GREY if edge == style.PALE else edge  # pale is invisible on white
            drawing.boxes(filled, fill, hatch, edge=edge, dashed=fill == style.WHITE)
        for cell, (x, y, wide, high) in boxes:
            if cell.frame:
                colour = self._look(cell.frame)[0]
                corners = [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)]
                drawing.line(corners, colour, 2.5)
            dots = [_middle(_slot((x, y, wide, high), cell, slot)) for slot in cell.dots]
            if dots:
                squares = [(a - 2, b - 2, 4, 4) for a, b in dots]
                drawing.boxes(squares, style.UPDATE, edge=style.UPDATE)

    def _draw_texts(self, drawing: Drawing, boxes: Sequence[tuple[Cell, Box]]) -> None:
        looks: dict[tuple[float, str, bool], list[tuple[float, float, str]]] = {}
        for cell, box in boxes:
            x, y, wide, high = box
            if cell.text and self.below:
                size = _size(cell.text, wide + self.gap) or 6.5
                place = (x + wide / 2, y + high + 9, cell.text)
                looks.setdefault((size, style.INK, cell.bold), []).append(place)
            elif cell.text:
                size = _size(cell.text, wide) or 6.5
                ink = self._ground(drawing, cell, box, width_pt(cell.text, size))
                place = (x + wide / 2, y + high / 2 + 0.37 * size, cell.text)
                looks.setdefault((size, ink, cell.bold), []).append(place)
            for slot, text in cell.texts.items():
                a, b, w, h = _slot(box, cell, slot)
                words = _several(cell.filled.get(slot, ()))
                look = self._look(words[0]) if len(words) == 1 else (style.WHITE, None)
                if (size := _size(text, w + 2)) and h >= 11:
                    base = b + (h - (_STRIPE if len(words) > 1 else 0)) / 2 + 0.37 * size
                    key = (size, style.on(look[0]), cell.bold or bool(look[1]))
                    looks.setdefault(key, []).append((a + w / 2, base, text))
        for (size, ink, bold), texts in looks.items():
            drawing.write_all(texts, size, "center", ink, bold)

    def _look(self, word: str) -> style.Look:
        return self.looks.get(word) or style.meaning(word)

    def _ground(self, drawing: Drawing, cell: Cell, box: Box, wide: float) -> str:
        """The colour of a text in the cell's centre; draws a plain background if needed."""
        words = {cell.filled.get(slot, "") for slot in range(max(1, cell.slots))}
        word = words.pop()
        fill, hatch = self._look(word) if isinstance(word, str) and word else (style.WHITE, None)
        fill = style.WHITE if words else fill
        if words or hatch:
            x, y = _middle(box)
            high = min(13.0, box[3] - 2)
            drawing.boxes([(x - wide / 2, y - high / 2, wide, high)], fill, edge=fill)
        return style.on(fill)

    def _lines(
        self, arrows: Sequence[tuple[Place, Place]], tops: Mapping[str, float]
    ) -> list[list[Point]]:
        lines: list[list[Point]] = []
        for (row, start), (end_row, end) in arrows:
            a, b = (tops[name] + self.high[name] / 2 for name in (row, end_row))
            right = self.x[start] + self.width[start] + 3
            if row != end_row:  # from centre to centre
                sign = 1 if b > a else -1
                half, end_half = self.high[row] / 2 + 1, self.high[end_row] / 2 + 1
                first = self.x[start] + self.width[start] / 2, a + sign * half
                last = self.x[end] + self.width[end] / 2, b - sign * end_half
                lines += arrow_lines(first, last)
            elif self.x[end] > self.x[start]:
                lines += arrow_lines((right, a), (self.x[end] - 3, a))
            elif self.columns.index(start) - self.columns.index(end) == 1 < len(self.columns) - 1:
                left = self.x[end] + self.width[end] + 3
                lines += arrow_lines((self.x[start] - 3, a), (left, a))
            else:  # wrap around the edge
                lines.append([(right, a), (WIDTH_PT, a)])
                lines += arrow_lines((self.left - 4, a), (self.x[end] - 3, a))
        return lines


def cells(grid: Grid, title: str = "", *, notes: Sequence[str] = (), **more: object) -> Drawing:
    """Draw {row: {column: Cell}} as a figure; `more` are options of `Cells`."""
    return page(title, Cells(grid, **more), notes=notes)  # type: ignore[arg-type]


def matrix(values: Sequence[Sequence[float]], word: str, held: Collection[int] = ()) -> Cell:
    """A matrix as a cell; only the numbers at the indices `held` (default: all) are shown."""
    numbers = [f"{value:g}".replace("-", "−") for row in values for value in row]
    held = held or range(len(numbers))
    filled, texts = dict.fromkeys(held, word), {slot: numbers[slot] for slot in held}
    return Cell("", filled, len(numbers), len(values[0]), texts, bold=True)


def _several(words: Words) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else words


def _flat(name: str) -> str:
    return name.replace("\n", ", ")


def _listed(names: Sequence[str]) -> str:
    if len(names) > 4 and all(names):
        return f"{names[0]}, {names[1]}, …, {names[-1]}"
    return ", ".join(dict.fromkeys(names))


def _content(cell: Cell) -> str:
    kinds = dict.fromkeys("+".join(_several(words)) for words in cell.filled.values())
    full = len(cell.filled) == cell.slots
    parts = "" if cell.slots < 2 or full else f"{len(cell.filled)} of {cell.slots} parts of "
    words = parts + " and ".join(kinds) if kinds else ""
    return " ".join(filter(None, [words, cell.text, *cell.texts.values()])) or "nothing"


def _size(text: str, wide: float) -> float:
    """The largest font size at which the text fits; 0 if none does."""
    return next((size for size in _SIZES if width_pt(text, size) <= wide + 4), 0.0)


def _slot(box: Box, cell: Cell, slot: int) -> Box:
    x, y, wide, high = box
    rows, across = cell.sizes
    row, column = divmod(slot, across)
    thick = max(high / rows, 1.2)
    top = y + (high - thick) * row / max(1, rows - 1)
    return x + wide * column / across, top, wide / across, thick


def _stripe(box: Box, number: int, count: int) -> Box:
    x, y, wide, high = box
    thick = min(_STRIPE, high / 3)
    return x + wide * number / count, y + high - thick, wide / count, thick


def _joined(boxes: Sequence[Box]) -> list[Box]:
    """Merge adjacent boxes: first within a row, then rows of the same width."""
    rows = joined(sorted(boxes, key=lambda box: (round(box[1], 3), box[0])))
    turned = sorted(((y, x, high, wide) for x, y, wide, high in rows), key=lambda box: box[1::-1])
    return [(x, y, wide, high) for y, x, high, wide in joined(turned)]


def _middle(box: Box) -> tuple[float, float]:
    return box[0] + box[2] / 2, box[1] + box[3] / 2
