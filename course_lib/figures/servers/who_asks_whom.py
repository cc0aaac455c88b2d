"""Processes with different work, and what goes from one to another."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box

_TOP, _ROW, _APART = 28.0, 62.0, 30.0
_SIZE = 9.0
_WIDTHS = {1: 118.0, 2: 118.0, 3: 96.0}  # of a box, by columns
_COLUMNS, _ROWS = 3, 4  # at most
Call = tuple[str, str, str]  # from, to, what goes


def who_asks_whom(
    columns: Sequence[Mapping[str, str]], calls: Sequence[Call], title: str = ""
) -> Drawing:
    """Columns of {process: what it holds}, and an arrow for each call between neighbours.

    A process alone in its column is as high as all others together. A single call inside a column
    goes both ways, as a collective does. Raises ValueError for more than 3 columns or 4 processes
    in one, and for a call between processes that are not neighbours.
    """
    rows = max(map(len, columns), default=0)
    if not 0 < rows <= _ROWS or len(columns) > _COLUMNS or not all(columns):
        raise ValueError(f"columns must be 1 to {_COLUMNS}, each of 1 to {_ROWS} processes")
    boxes = _boxes(columns, rows)
    head = f"{title} ({len(boxes)} in all: {', '.join(boxes)})"
    said = "; ".join(f"{first} to {second}: {what}" for first, second, what in calls)
    drawing = Drawing(_TOP + rows * _ROW + (rows - 1) * _APART + 4, f"{head}. {said}.")
    drawing.title(title)
    for name, held in (item for column in columns for item in column.items()):
        x, y, width, height = boxes[name]
        drawing.boxes([boxes[name]], style.PALE, edge=style.GREY)
        middle = y + height / 2
        drawing.write(x + width / 2, middle - 3, name, align="center", bold=True)
        drawing.write(x + width / 2, middle + 12, held, _SIZE, "center")
    between: dict[frozenset[str], list[Call]] = {}
    for call in calls:
        between.setdefault(frozenset(call[:2]), []).append(call)
    for several in between.values():
        _arrows(drawing, several, boxes)
    return drawing


def _boxes(columns: Sequence[Mapping[str, str]], rows: int) -> dict[str, Box]:
    width = _WIDTHS[len(columns)]
    step = (WIDTH_PT - width - 4) / max(1, len(columns) - 1)
    boxes: dict[str, Box] = {}
    for place, column in enumerate(columns):
        taken = rows * _ROW + (rows - 1) * _APART
        height = (taken - (len(column) - 1) * _APART) / len(column)
        for row, name in enumerate(column):
            y = _TOP + row * (height + _APART)
            boxes[name] = 2 + place * step, y, width, height
    return boxes


def _arrows(drawing: Drawing, calls: Sequence[Call], boxes: Mapping[str, Box]) -> None:
    """Horizontal arrows between columns, vertical ones inside a column, each with its words."""
    for place, (first, second, what) in enumerate(calls):
        if first not in boxes or second not in boxes:
            raise ValueError(f"a call from {first!r} to {second!r}: name processes of the columns")
        (x, y, width, height), (to_x, to_y, _, to_height) = boxes[first], boxes[second]
        if x == to_x:
            middle = x + width / 2
            ends = [(middle, y + height), (middle, to_y)]
            if y > to_y:
                ends = [(middle, y), (middle, to_y + to_height)]
            if abs(ends[0][1] - ends[1][1]) > _APART + 1:
                raise ValueError(f"{first!r} and {second!r} are not neighbours: put them so")
            drawing.write(middle + 8, sum(at for _, at in ends) / 2 + 3, what, _SIZE)
        else:
            least = min(height, to_height)
            top = max(y, to_y)
            level = top + least * (place + 1) / (len(calls) + 1) + 4
            ends = (
                [(x + width, level), (to_x, level)]
                if to_x > x
                else [(x, level), (to_x + width, level)]
            )
            drawing.write(sum(at for at, _ in ends) / 2, level - 4, what, _SIZE, "center")
        arrow(drawing, ends[0], ends[1], style.MESSAGES, 1.8)
        if len(calls) == 1 and x == to_x:
            arrow(drawing, ends[1], ends[0], style.MESSAGES, 1.8)
