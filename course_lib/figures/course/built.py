"""What a learner has built: each part, whose it is, its lines and its speed beside the course's."""

from collections.abc import Mapping, Sequence
from typing import Any

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import format_number

_TOP, _ROW, _BAR = 56.0, 22.0, 7.0
_NAMES, _BARS, _END = 44.0, 262.0, 440.0
_YOURS, _COURSE = style.SKY, style.PALE


def built(parts: Sequence[Mapping[str, Any]]) -> Sheet:
    """A row for each part of `checking.races.report()["parts"]`.

    A filled square: the learner's own. Bars: lines of code of both versions, on one scale. Where
    the report was measured, the time of theirs over the course's stands behind. Raises ValueError
    without a part.
    """
    if not parts:
        raise ValueError("parts is empty: give the parts of races.report()")
    yours = [part for part in parts if part["file"]]
    sheet = Sheet(_TOP + _ROW * len(parts) + 6, sentence(parts))
    title = f"Your parallel library: {len(yours)} of {len(parts)} parts are yours"
    sheet.title(title)
    sheet.write(_BARS, 34, "lines of code: yours above, the course's below", colour=style.GREY)
    most = max(max(part["lines"] or 0, part["lines_of_the_course"]) for part in parts)
    for row, part in enumerate(parts):
        _row(sheet, part, _TOP + _ROW * row, (_END - _BARS) / most)
    return sheet


def sentence(parts: Sequence[Mapping[str, Any]]) -> str:
    """The result in words."""
    yours = [part for part in parts if part["file"]]
    words = [f"{len(yours)} of {len(parts)} parts of the library are yours"]
    words += [f"{part['title']}: {_words(part)}" for part in parts]
    return "; ".join(words) + "."


def _words(part: Mapping[str, Any]) -> str:
    course = f"{part['lines_of_the_course']} lines"
    if not part["file"]:
        return f"the course's, {course}"
    speed = (
        f", {format_number(part['times_the_course'], 2)} times its time"
        if "times_the_course" in part
        else ""
    )
    return f"yours, {part['lines']} lines beside the course's {part['lines_of_the_course']}{speed}"


def _row(sheet: Sheet, part: Mapping[str, Any], y: float, scale: float) -> None:
    """One part: number and title, a square, two bars, the ratio of times."""
    own = bool(part["file"])
    sheet.write(0, y + 11, part["build"], bold=own)
    sheet.write(_NAMES, y + 11, part["title"], bold=own)
    if own:
        sheet.boxes([(_BARS - 18, y + 3, 10, 10)], _YOURS)
        sheet.boxes([(_BARS, y, part["lines"] * scale, _BAR)], _YOURS)
    else:
        sheet.boxes([(_BARS - 18, y + 3, 10, 10)], style.WHITE, None, style.GREY)
    sheet.boxes(
        [(_BARS, y + 8, part["lines_of_the_course"] * scale, _BAR)], _COURSE, edge=style.GREY
    )
    if "times_the_course" in part:
        sheet.write(_END + 8, y + 11, f"× {format_number(part['times_the_course'], 2)} time")
