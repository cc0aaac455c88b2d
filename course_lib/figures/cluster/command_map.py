"""Which command to ask about which part of a cluster."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted

_TOP, _ROW, _BOX, _LEFT = 30.0, 30.0, 104.0, 122.0


def command_map(parts: Sequence[tuple[str, str, str]], title: str = "") -> Sheet:
    """`parts`: (part, question, command), from your program down to the cable.

    Raises ValueError where there is none.
    """
    if not parts:
        raise ValueError("parts is empty: give (part, question, command) for each of them")
    heading = title or "What to ask, from your program down to the cable"
    sheet = Sheet(_TOP + _ROW * len(parts), _sentence(parts))
    sheet.title(heading)
    for row, (part, question, command) in enumerate(parts):
        y = _TOP + row * _ROW
        if row:
            sheet.line([(_BOX / 2, y - 6), (_BOX / 2, y)], style.INK, 1.5)
        sheet.boxes([(1, y, _BOX, _ROW - 6)], style.PALE)
        sheet.write(1 + _BOX / 2, y + 16, part, align="center", bold=True)
        sheet.write(_LEFT, y + 16, question, colour=style.GREY)
        sheet.write(WIDTH_PT - 4, y + 16, command, align="right")
    return sheet


def _sentence(parts: Sequence[tuple[str, str, str]]) -> str:
    told = "; ".join(f"{part}: {question} {command}" for part, question, command in parts)
    return f"{counted(len(parts), 'part')} of a cluster. {told}."
