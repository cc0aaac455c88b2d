"""Where a prediction, the theory and a measurement lie on one line."""

import math
from collections.abc import Mapping

from course_lib.figures.engines.axis import Tell, even, fitting, powers
from course_lib.figures.engines.lines import Frame
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing

COLOURS = {"you": style.YOU, "theory": style.THEORY, "measured": style.MEASURED}
_NAMES, _RIGHT, _ROW, _MARK = 76.0, 515.0, 20.0, 9.0
_CHARACTER = 6.5  # points, of a digit at 10 points
_LOG_FROM = 20  # a smallest value below this part of the largest is lost on a linear scale


def number_line(values: Mapping[str, float], words: Tell) -> Drawing:
    """`values` by "you", "theory" and "measured", of which some may be missing: a row for each.

    `words` writes a value with its unit. The scale is linear from 0, or logarithmic where all are
    above 0 and far apart. Raises ValueError for no value, another name, or one that is not finite.
    """
    if not values or not values.keys() <= COLOURS.keys():
        raise ValueError(f"values must be some of {', '.join(COLOURS)}, got {list(values)}")
    if not all(map(math.isfinite, values.values())):
        raise ValueError(f"values must be finite, got {values}: leave out what is not")
    sizes = list(values.values())
    logarithmic = min(sizes) > 0 and max(sizes) > _LOG_FROM * min(sizes)
    column = _NAMES + _CHARACTER * max(len(words(size)) for size in sizes)
    left, bottom = column + 20, _ROW * len(values)
    make, shown = (powers, sizes) if logarithmic else (even, [*sizes, 0.0])
    axis = fitting(make, shown, words, _RIGHT - left)
    sentence = "; ".join(f"{name}: {words(value)}" for name, value in values.items())
    scale = "logarithmic" if logarithmic else "linear"
    drawing = Drawing(bottom + 18, f"{sentence}; on a {scale} scale.")
    frame = Frame(drawing, axis, axis, left, 2, _RIGHT, bottom)
    frame.ticks_across()
    for row, (name, value) in enumerate(values.items()):
        x, y = frame.x(value), _ROW * (row + 0.5)
        drawing.write(0, y + 4, name, bold=True)
        drawing.write(column, y + 4, words(value), align="right")
        if name == "you" and abs(frame.x(sizes[-1]) - x) > _MARK:  # from there to what was found
            found = frame.x(sizes[-1])
            drawing.line([(x, y), (found, y)], style.YOU, width=3)
            drawing.line([(found, y - 7), (found, y + 7)], style.YOU, width=1.5)
        drawing.boxes([(x - _MARK / 2, y - _MARK / 2, _MARK, _MARK)], COLOURS[name])
    return drawing
