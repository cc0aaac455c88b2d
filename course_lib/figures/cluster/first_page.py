"""From what you see to what you ask first: a tree of two levels."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted

_TOP, _ROW, _GAP, _BOX, _SYMPTOM, _ASK = 44.0, 22.0, 10.0, 84.0, 100.0, 278.0
Row = tuple[str, str, str]  # symptom, what to ask first, sections


def first_page(branches: Mapping[str, Sequence[Row]], title: str = "") -> Drawing:
    """{"it is slow": [(symptom, what to ask first, sections), …]}.

    Raises ValueError for no branch, or one without a row.
    """
    if not branches or not all(branches.values()):
        raise ValueError("branches must hold rows: give {name: [(symptom, question, sections)]}")
    count = sum(map(len, branches.values()))
    told = "; ".join(
        f"{name}: " + ", ".join(f"{symptom}: {ask} ({where})" for symptom, ask, where in rows)
        for name, rows in branches.items()
    )
    height = _TOP + _ROW * count + _GAP * (len(branches) - 1)
    drawing = Drawing(height + 2, f"{counted(count, 'symptom')}. {told}.")
    drawing.write(0, 13, title, style.TITLE_PT, bold=True)
    for x, words, align in (
        (_SYMPTOM, "you see", "left"),
        (_ASK, "ask first", "left"),
        (WIDTH_PT, "section", "right"),
    ):
        drawing.write(x, 34, words, 9, align, style.GREY)
    y = _TOP
    for name, rows in branches.items():
        end = y + _ROW * len(rows)
        drawing.boxes([(1, y, _BOX, end - y)], style.PALE)
        drawing.write(1 + _BOX / 2, (y + end) / 2 + 3.5, name, align="center", bold=True)
        for row, (symptom, ask, where) in enumerate(rows):
            line = y + _ROW * row
            if row:
                drawing.line([(_SYMPTOM, line), (WIDTH_PT, line)], style.PALE)
            drawing.line([(1 + _BOX, line + 11), (_SYMPTOM - 4, line + 11)], style.GREY)
            drawing.write(_SYMPTOM, line + 15, symptom, 9)
            drawing.write(_ASK, line + 15, ask, 9)
            drawing.write(WIDTH_PT, line + 15, where, 9, "right", style.GREY)
        y = end + _GAP
    return drawing
