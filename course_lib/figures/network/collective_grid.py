"""What collectives do: before and after, who holds which block."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import Box
from course_lib.theory.network.blocks import Exchange, Row

# By rank: whose numbers they are. Colours without a meaning of their own.
_LOOKS = (style.SKY, style.ORANGE, style.GREEN, style.PINK)
_COLUMN, _TOP = 268.0, 30.0
_CELL, _PITCH, _BAND = 19.0, 22.0, 5.0


def collective_grid(exchanges: Sequence[Exchange]) -> Drawing:
    """For each collective the ranks' rows before and after it, two collectives side by side.

    A colour for each rank whose numbers are in a block, and the number that it has if rank r's
    row is 1·10^r, 2·10^r, … Raises ValueError without a collective or beyond 4 ranks.
    """
    if not exchanges or len(exchanges[0].before) > len(_LOOKS):
        raise ValueError("exchanges must hold 1 or more collectives of 2 to 4 ranks: give some")
    ranks = len(exchanges[0].before)
    height = _TOP + ranks * _PITCH + 12
    rows = -(-len(exchanges) // 2)
    drawing = Drawing(rows * height - 10, collective_sentence(exchanges))
    for place, one in enumerate(exchanges):
        _one(drawing, one, _COLUMN * (place % 2), height * (place // 2))
    return drawing


def collective_sentence(exchanges: Sequence[Exchange]) -> str:
    """Every collective with its numbers before and after, in words."""
    return " ".join(
        f"{one.operation}: {_told(one.before)} become {_told(one.after)}." for one in exchanges
    )


def _told(rows: tuple[Row, ...]) -> str:
    return "; ".join(" ".join(str(block.number) for block in row) or "nothing" for row in rows)


def _one(drawing: Drawing, exchange: Exchange, left: float, top: float) -> None:
    drawing.write(left, top + 12, exchange.operation, bold=True)
    ranks = len(exchange.before)
    width = 26.0 if ranks <= 3 else 22.0
    middle = left + 38 + max(map(len, exchange.before)) * width
    top += _TOP - 8
    names = [(left, top + rank * _PITCH + 13, f"rank {rank}") for rank in range(ranks)]
    drawing.write_all(names, 9, colour=style.GREY)
    _rows(drawing, exchange.before, left + 36, top, width)
    _rows(drawing, exchange.after, middle + 24, top, width)
    y = top + (ranks * _PITCH - 3) / 2
    arrow(drawing, (middle + 3, y), (middle + 18, y), width=1.5)


def _rows(drawing: Drawing, rows: tuple[Row, ...], left: float, top: float, width: float) -> None:
    """A block of one rank is filled; a sum has a stripe for each of its ranks below its number."""
    fills: list[list[Box]] = [[] for _ in _LOOKS]
    frames, nothing = [], []
    numbers: list[tuple[float, float, str]] = []
    sums: list[tuple[float, float, str]] = []
    for rank, row in enumerate(rows):
        y = top + rank * _PITCH
        nothing += [] if row else [(left, y, width, _CELL)]
        for place, block in enumerate(row):
            x, alone = left + place * width, len(block.summands) == 1
            stripe = width / len(block.summands)
            for slot, one in enumerate(block.summands):
                high = _CELL if alone else _BAND
                fills[one].append((x + slot * stripe, y + _CELL - high, stripe, high))
            frames.append((x, y, width, _CELL))
            text = (x + width / 2, y + (13 if alone else 11), str(block.number))
            (numbers if alone else sums).append(text)
    for look, boxes in zip(_LOOKS, fills, strict=True):
        drawing.boxes(boxes, look, edge="none")
    drawing.boxes(frames, "none")
    drawing.boxes(nothing, style.WHITE, edge=style.GREY, dashed=True)
    size = 9 if width > 24 else 7.5
    drawing.write_all(numbers, size, "center", style.ON_FILL)
    drawing.write_all(sums, size, "center", bold=True)
