"""The rows of a table, and which of them a batch uses."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted

_TOP, _LEFT, _ROW, _CELL, _MOST = 40.0, 120.0, 22.0, 46.0, 16


def used_rows(
    looked_up: Sequence[int], gradient: Sequence[Sequence[float]], title: str = ""
) -> Drawing:
    """Left: the rows that a batch looks up. Right: the table's `gradient`, zeros pale.

    Raises ValueError for an empty table, or one of more than 16 rows.
    """
    if not 0 < len(gradient) <= _MOST:
        raise ValueError(f"gradient has {len(gradient)} rows: give 1 to {_MOST}")
    used = sorted(set(looked_up))
    sentence = (
        f"{counted(len(looked_up), 'look-up')} use rows {', '.join(map(str, used))}: "
        f"{counted(len(used), 'row')} of {len(gradient)} have a gradient that is not zero."
    )
    height = max(len(gradient), len(looked_up))
    drawing = Drawing(_TOP + _ROW * height + 6, sentence)
    drawing.title(title)
    drawing.write(0, 31, "looked up", 9, colour=style.GREY)
    drawing.write(_LEFT + 90, 31, "the table's gradient", 9, colour=style.GREY)
    for row, values in enumerate(gradient):
        y = _TOP + row * _ROW
        drawing.write(_LEFT + 80, y + 15, f"row {row}", 9, "right")
        for column, value in enumerate(values):
            fill = style.GRADIENTS if value else style.PALE
            x = _LEFT + 90 + column * _CELL
            drawing.boxes([(x, y, _CELL, _ROW - 3)], fill, edge=style.WHITE)
            drawing.write(x + _CELL / 2, y + 14, f"{value:g}", 9, "center", style.on(fill))
        many = list(looked_up).count(row)
        if many:
            text = f"used {many} times" if many > 1 else "used once"
            drawing.write(_LEFT + 100 + len(values) * _CELL, y + 15, text, 9)
    for place, row in enumerate(looked_up):
        y = _TOP + place * _ROW
        drawing.boxes([(0, y, 52, _ROW - 3)], style.PALE, edge=style.GREY)
        drawing.write(26, y + 14, str(row), 9, "center")
        target = _TOP + row * _ROW + 9
        drawing.line([(54, y + 9), (_LEFT + 44, target)], style.GREY)
    return drawing
