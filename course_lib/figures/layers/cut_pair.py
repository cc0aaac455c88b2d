"""Two matrices in numbers, the first cut by columns and the second by rows: there and back."""

from collections.abc import Sequence

from course_lib.figures.layers.cut_product import Matrix, matrix
from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted

_CELL, _TOP, _ROW = 30.0, 32.0, 74.0
_X, _A, _Y, _B, _Z = 66.0, 160.0, 254.0, 348.0, 442.0  # left edges, for two cells each
_NAMES = dict(zip((_X, _A, _Y, _B, _Z), ("X", "A", "ReLU(X·A)", "B", "Z"), strict=True))
_GRADIENTS = _NAMES | {_X: "∂X", _Y: "∂(X·A)", _Z: "∂Z"}
_SIZE = 2  # rows and columns of both matrices; one rank for each column of A


def cut_pair(
    x: Sequence[float], a: Matrix, b: Matrix, gradient: Sequence[float] | None = None
) -> Drawing:
    """Z = ReLU(x·a)·b on two ranks, what each has and what is summed at the end.

    With the `gradient` of Z, the way back to that of x instead, right to left, each gradient in
    the place of what it belongs to. Raises ValueError unless all sizes are 2.
    """
    sizes = [len(x), len(a), len(b), *map(len, a), *map(len, b), len(gradient or x)]
    if set(sizes) != {_SIZE}:
        raise ValueError(f"sizes {sizes}: draw two numbers and matrices of 2 × 2")
    inner = [max(0, sum(x[i] * a[i][rank] for i in range(_SIZE))) for rank in range(_SIZE)]
    back = gradient is not None
    if gradient is None:
        parts = [[inner[rank] * value for value in b[rank]] for rank in range(_SIZE)]
    else:
        inner = [
            (inner[rank] > 0) * sum(gradient[j] * b[rank][j] for j in range(_SIZE))
            for rank in range(_SIZE)
        ]
        parts = [[inner[rank] * a[i][rank] for i in range(_SIZE)] for rank in range(_SIZE)]
    whole = [sum(part[j] for part in parts) for j in range(_SIZE)]
    drawing = Drawing(_TOP + _ROW * _SIZE + 44, _sentence(parts, whole, back))
    for left, name in (_GRADIENTS if back else _NAMES).items():
        drawing.write(left + _CELL, 18, name, align="center", bold=True)
    start, end = (_Z, _X) if back else (_X, _Z)
    fill = style.GRADIENTS if back else style.ACTIVATIONS
    every = {(0, j) for j in range(_SIZE)}
    for rank in range(_SIZE):
        middle = _TOP + _ROW * rank + _ROW / 2
        drawing.write(54, middle + 4, f"rank {rank}", align="right", bold=True)
        matrix(drawing, start, middle, [gradient or x], every, fill)
        column, row = {(i, rank) for i in range(_SIZE)}, {(rank, j) for j in range(_SIZE)}
        matrix(drawing, _A, middle, a, column, style.WEIGHTS)
        matrix(drawing, _Y, middle, [[inner[rank]] * _SIZE], {(0, rank)}, fill)
        matrix(drawing, _B, middle, b, row, style.WEIGHTS)
        matrix(drawing, end, middle, [parts[rank]], every, fill, "/")
        for left in (_X, _A, _Y, _B):
            near, far = (left + 2 * _CELL + 8, middle), (left + 2 * _CELL + 26, middle)
            arrow(drawing, far if back else near, near if back else far, style.GREY)
    _sum(drawing, whole, end, fill)
    return drawing


def _sum(drawing: Drawing, whole: Sequence[float], left: float, fill: str) -> None:
    """The last line: what the all-reduce makes of the hatched parts."""
    middle = _TOP + _ROW * _SIZE + 22
    matrix(drawing, left, middle, [whole], {(0, j) for j in range(_SIZE)}, fill)
    if left == _X:
        drawing.write(left + 2 * _CELL + 12, middle + 4, "f, all-reduce: both ranks get the sum")
        return
    drawing.write(left - 12, middle + 4, "g, all-reduce: both ranks get the sum", align="right")


def _sentence(parts: Matrix, whole: Sequence[float], back: bool) -> str:
    what = "gradient of X" if back else "Z"
    told = "; ".join(
        f"rank {rank} has {', '.join(f'{value:g}' for value in part)} of the {what}"
        for rank, part in enumerate(parts)
    )
    end = ", ".join(f"{value:g}" for value in whole)
    return f"A cut by columns, B by rows, on {counted(len(parts), 'rank')}: {told}; sum {end}."
