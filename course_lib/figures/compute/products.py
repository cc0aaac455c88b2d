"""Matrix products, drawn number by number: what one number of the result is made of."""

from collections.abc import Iterable, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.theory.compute.products import Product

_CELL, _LEFT, _BETWEEN, _HEAD, _MOST = 15.0, 142.0, 28.0, 24.0, 4
_FILLS = {"X": style.ACTIVATIONS, "Y": style.ACTIVATIONS, "W": style.WEIGHTS}


def matrix_products(products: Sequence[Product]) -> Drawing:
    """A row for each product; filled: a row and a column, and the number that they make.

    Raises ValueError without a product, and for one with a side above 4.
    """
    sides = [side for one in products for side in (one.rows, one.inner, one.columns)]
    if not sides or max(sides) > _MOST:
        raise ValueError(f"products has sides {sides}: give products of at most {_MOST} × {_MOST}")
    heights = [_CELL * max(one.rows, one.inner) + _HEAD for one in products]
    drawing = Drawing(sum(heights), _sentence(products))
    top = 0.0
    for one, height in zip(products, heights, strict=True):
        _product(drawing, one, top + 14, height - _HEAD)
        top += height
    return drawing


def _product(drawing: Drawing, one: Product, top: float, height: float) -> None:
    middle = top + height / 2
    drawing.write(_LEFT - 14, middle + 4, one.what, 9, "right")
    first_row = {(0, column) for column in range(one.inner)}
    first_column = {(row, 0) for row in range(one.inner)}
    x = _matrix(drawing, one.left, (one.rows, one.inner), first_row, _LEFT, middle)
    drawing.write(x + _BETWEEN / 2, middle + 4, "·", style.TITLE_PT, "center", bold=True)
    sizes = one.inner, one.columns
    x = _matrix(drawing, one.right, sizes, first_column, x + _BETWEEN, middle)
    drawing.write(x + _BETWEEN / 2, middle + 4, "=", style.TITLE_PT, "center", bold=True)
    sizes = one.rows, one.columns
    _matrix(drawing, one.result, sizes, {(0, 0)}, x + _BETWEEN, middle)
    count = f"2 · {one.rows} · {one.inner} · {one.columns} = {one.flop} FLOP"
    drawing.write(WIDTH_PT - 4, middle + 4, count, 9, "right")


def _matrix(
    drawing: Drawing,
    name: str,
    size: tuple[int, int],
    chosen: set[tuple[int, int]],
    x: float,
    middle: float,
) -> float:
    """A grid below its name; where it ends on the right."""
    rows, columns = size
    top = middle - rows * _CELL / 2
    fill = style.GRADIENTS if "∇" in name else _FILLS[name[0]]
    every = {(row, column) for row in range(rows) for column in range(columns)}
    drawing.write(x, top - 4, f"{name}  {rows} × {columns}", 9, bold=True)
    drawing.boxes(_cells(every - chosen, x, top), style.WHITE, edge=style.GREY)
    drawing.boxes(_cells(chosen, x, top), fill)
    return x + columns * _CELL


def _cells(
    places: Iterable[tuple[int, int]], x: float, top: float
) -> list[tuple[float, float, float, float]]:
    return [(x + j * _CELL, top + i * _CELL, _CELL, _CELL) for i, j in sorted(places)]


def _sentence(products: Sequence[Product]) -> str:
    return "; ".join(
        f"{one.what}: {one.left} of {one.rows} × {one.inner} numbers times {one.right} of "
        f"{one.inner} × {one.columns} takes {one.flop} FLOP"
        for one in products
    )
