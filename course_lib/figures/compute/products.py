"""Matrix products, drawn number by number: what one number of the result is made of."""

from collections.abc import Sequence

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.compute.products import Product

_KINDS = {"X": "activations", "Y": "activations", "W": "weights", "∇": "gradients"}


def matrix_products(products: Sequence[Product]) -> Drawing:
    """A row for each product; filled: a row and a column, and the number that they make."""
    return page("", *map(_product, products))


def _product(one: Product) -> Cells:
    row = {
        f"{one.left}  {one.rows} × {one.inner}": _matrix(one.left, one.rows, one.inner, 1),
        f"·  {one.right}  {one.inner} × {one.columns}": _matrix(
            one.right, one.inner, one.columns, one.columns
        ),
        f"=  {one.result}  {one.rows} × {one.columns}": _matrix(
            one.result, one.rows, one.columns, 0
        ),
    }
    count = f"2 · {one.rows} · {one.inner} · {one.columns} = {one.flop} FLOP"
    return Cells({f"{one.what}\n{count}": row}, square=15)


def _matrix(name: str, rows: int, columns: int, step: int) -> Cell:
    """Filled are a first row (by steps of 1), a first column (of `columns`), or one number."""
    places = range(0, rows * columns if step == columns else columns, step) if step else [0]
    return Cell("", dict.fromkeys(places, _KINDS[name[0]]), rows * columns, columns)
