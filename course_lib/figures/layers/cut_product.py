"""One matrix product on several ranks: cut by columns, and cut by rows."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted

_CELL, _TOP, _ROW = 30.0, 46.0, 82.0
_X, _A, _RESULT = 72.0, 184.0, 310.0
_MOST = 3  # numbers in a row or a column
Matrix = Sequence[Sequence[float]]


def cut_product(x: Sequence[float], a: Matrix, by: str) -> Drawing:
    """A row x times a matrix a, one rank for each column, or for each row, of `a`.

    What a rank has is filled. By columns its result is a part; by rows it has full size and is
    not finished. Raises ValueError for another `by`, for sizes that do not fit, and above 3 × 3.
    """
    rows, columns = len(a), len(a[0])
    if by not in ("columns", "rows"):
        raise ValueError(f"by {by!r}: give columns or rows")
    if len(x) != rows or not 1 <= max(rows, columns) <= _MOST:
        raise ValueError(f"x has {len(x)} numbers and a is {rows} × {columns}: at most 3 × 3")
    ranks = columns if by == "columns" else rows
    parts = [
        [sum(x[i] * a[i][rank] for i in range(rows))]
        if by == "columns"
        else [x[rank] * value for value in a[rank]]
        for rank in range(ranks)
    ]
    whole = [sum(x[i] * a[i][j] for i in range(rows)) for j in range(columns)]
    row = max(_ROW, rows * _CELL + 22)
    drawing = Drawing(_TOP + row * (ranks + 1) - 24, _sentence(by, parts, whole))
    drawing.title(f"Cut by {by}")
    for left, name in ((_X, "X"), (_A, "A"), (_RESULT, "X·A")):
        drawing.write(left, _TOP - 12, name, bold=True)
    for rank in range(ranks):
        middle = _TOP + row * rank + row / 2 - 8
        drawing.write(60, middle + 4, f"rank {rank}", align="right", bold=True)
        mine_of_x = {(0, i) for i in range(rows) if by == "columns" or i == rank}
        matrix(drawing, _X, middle, [x], mine_of_x, style.ACTIVATIONS)
        mine = {(i, j) for i in range(rows) for j in range(columns)}
        mine = {(i, j) for i, j in mine if rank == (j if by == "columns" else i)}
        matrix(drawing, _A, middle, a, mine, style.WEIGHTS)
        shown = [0.0] * rank + parts[rank] if by == "columns" else parts[rank]
        cells = {(0, rank)} if by == "columns" else {(0, j) for j in range(columns)}
        shown = [*shown, *[0.0] * (columns - len(shown))]
        hatch = "/" if by == "rows" else None
        matrix(drawing, _RESULT, middle, [shown], cells, style.ACTIVATIONS, hatch)
        told = "a finished part" if by == "columns" else "full size, unfinished"
        drawing.write(_RESULT + columns * _CELL + 12, middle + 4, told, size=9)
    middle = _TOP + row * ranks + 18
    how = "all-gather: put them side by side" if by == "columns" else "all-reduce: add them up"
    drawing.write(_RESULT - 14, middle + 4, how, align="right")
    cells = {(0, j) for j in range(columns)}
    matrix(drawing, _RESULT, middle, [whole], cells, style.ACTIVATIONS)
    return drawing


def matrix(
    drawing: Drawing,
    left: float,
    middle: float,
    values: Matrix,
    mine: set[tuple[int, int]],
    fill: str,
    hatch: str | None = None,
) -> None:
    """Cells of numbers; those that the rank does not have are empty."""
    top = middle - len(values) * _CELL / 2
    boxes = {
        (i, j): (left + j * _CELL, top + i * _CELL, _CELL, _CELL)
        for i, row in enumerate(values)
        for j in range(len(row))
    }
    drawing.boxes(
        [box for key, box in boxes.items() if key not in mine], style.WHITE, edge=style.GREY
    )
    drawing.boxes([boxes[key] for key in sorted(mine)], fill, hatch)
    ink = style.ON_DARK_FILL if fill == style.WEIGHTS else style.ON_FILL
    texts = [
        (boxes[i, j][0] + _CELL / 2, boxes[i, j][1] + 19, f"{values[i][j]:g}".replace("-", "−"))
        for i, j in sorted(mine)
    ]
    drawing.write_all(texts, align="center", colour=ink, bold=True)


def _sentence(by: str, parts: Matrix, whole: Sequence[float]) -> str:
    told = "; ".join(
        f"rank {rank} computes {', '.join(f'{value:g}' for value in part)}"
        for rank, part in enumerate(parts)
    )
    end = ", ".join(f"{value:g}" for value in whole)
    return f"Cut by {by} on {counted(len(parts), 'rank')}: {told}; together {end}."
