"""Figures of chapter 5, in addition to those of the library."""

import math
from collections.abc import Sequence

from course_lib.chapters.ch05_flops_roofline_mfu.roofline import Operation, Product, Roofline
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lines import Axis, Curve, Frame, graph, powers
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, Point, counted
from course_lib.theory.inputs.units import format_flop, format_number

# --- Matrix products, drawn element by element ----------------------------------------------------

_KINDS = {"X": "activations", "Y": "activations", "W": "weights", "∇": "gradients"}


def matrix_products(products: Sequence[Product]) -> Drawing:
    """Draw a row for each product; filled: one row, one column, and the element they yield."""
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
    """A matrix; fills its first row (step 1), first column (step `columns`) or one element (0)."""
    slots = range(0, rows * columns if step == columns else columns, step) if step else [0]
    return Cell("", dict.fromkeys(slots, _KINDS[name[0]]), rows * columns, columns)


# --- The roofline of a chip, with the operations of a model ---------------------------------------

_LEAST, _MOST = 0.1, 1e4  # FLOP per byte
_NUMBER = 15.0  # least distance between the numbers of two dots


def on_roofline(result: Roofline, title: str = "") -> Drawing:
    """Plot attainable FLOP/s against FLOP per byte, both logarithmic, one dot per operation."""
    chip = result.accelerator
    ridge, peak, memory = chip.ridge_flop_per_byte, chip.peak_flop_per_s, chip.memory_bytes_per_s
    low = 10.0 ** math.floor(math.log10(_LEAST * memory))
    ticks = powers([low, peak], most=20).ticks
    y_range = (low, 2 * peak)  # the roof lies below the frame's top
    roof = Curve([(_LEAST, _LEAST * memory), (ridge, peak), (_MOST, peak)])
    frame = graph(
        {"": roof},
        title or chip.name,
        powers([_LEAST, _MOST], format_number, "FLOP per byte of memory traffic"),
        Axis(ticks, _rate, "FLOP/s that the chip can reach (both axes logarithmic)", True, y_range),
        more=17 * len(result.operations) + 4,
    )
    drawing, x = frame.drawing, frame.x(ridge)
    drawing.line([(x, frame.y(peak)), (x, frame.bottom)], style.GREY, dashed=True)
    ridge_words = f"ridge {format_number(ridge)}"
    drawing.write(x + 5, frame.bottom - 8, ridge_words, colour=style.GREY)
    _dots(frame, result.operations)
    limits = ", ".join(
        f"{op.name} by {'compute' if op.flop_per_byte >= ridge else 'memory'} "
        f"({format_number(op.flop_per_byte)} FLOP/byte)"
        for op in result.operations
    )
    drawing.sentence = (
        f"{chip.name}, {counted(result.tokens, 'token')}, {ridge_words}: {limits}; the roofline "
        f"allows {result.peak_fraction:.1%} of the peak for the whole pass."
    )
    return drawing


def _dots(frame: Frame, operations: Sequence[Operation]) -> None:
    """Draw a numbered dot for each operation, and a table of the numbers."""
    drawing, left = frame.drawing, frame.left
    dots = [(frame.x(op.flop_per_byte), frame.y(op.attainable_flop_per_s)) for op in operations]
    for row, (dot, number) in enumerate(zip(dots, _number_positions(frame, dots), strict=True)):
        below = number[1] > dot[1] + 12
        drawing.line([dot, (number[0], number[1] - 11) if below else number], width=0.6)
        drawing.write(*number, str(row + 1), size=9, align="center", bold=True)
    for dot in dots:
        drawing.dot(*dot, style.BLUE, radius=4)
    for row, op in enumerate(operations):
        y = frame.bottom + 52 + 17 * row
        drawing.write(left + 6, y, str(row + 1), align="center", bold=True)
        drawing.write(left + 20, y, op.name)
        drawing.write(left + 120, y, f"{format_number(op.flop_per_byte)} FLOP/byte")
        most = f"at most {_rate(op.attainable_flop_per_s)}"
        drawing.write(WIDTH_PT - 20, y, most, align="right")


def _number_positions(frame: Frame, dots: Sequence[Point]) -> list[Point]:
    """Positions of the dots' numbers: below or to the right of them, in the dots' order.

    The numbers of coinciding dots fan out so that each is legible; a line leads to its dot.
    """
    by_position = sorted(range(len(dots)), key=lambda dot: (dots[dot], dot))
    across: list[float] = []
    for dot in by_position:
        low = dots[dot][1] > frame.bottom - 32  # no room below: to the right
        across.append(max(dots[dot][0] + (18 if low else 6), across[-1] + _NUMBER if across else 0))
    for back in range(len(across)):  # shift those beyond the right edge to the left
        across[-1 - back] = min(across[-1 - back], frame.right - 6 - _NUMBER * back)
    down = [min(dots[dot][1] + 28, frame.bottom - 4) for dot in by_position]
    positions = dict(zip(by_position, zip(across, down, strict=True), strict=True))
    return [positions[dot] for dot in range(len(dots))]


def _rate(flop_per_s: float) -> str:
    return f"{format_flop(flop_per_s)}/s"
