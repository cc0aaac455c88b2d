"""An arrow, for figures in which something goes somewhere."""

import math

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import Point

_HEAD, _SPREAD = 5.0, 0.45  # length in points, half of the angle in radians


def arrow(
    picture: Drawing, start: Point, end: Point, colour: str = style.INK, width: float = 1
) -> None:
    """Draw a straight line with a head at `end`."""
    for points in arrow_lines(start, end):
        picture.line(points, colour, width)


def arrow_lines(start: Point, end: Point) -> list[list[Point]]:
    """Shaft and head: what several arrows of one look draw at once."""
    back = math.atan2(start[1] - end[1], start[0] - end[0])
    sides = [
        (end[0] + _HEAD * math.cos(back + turn), end[1] + _HEAD * math.sin(back + turn))
        for turn in (_SPREAD, -_SPREAD)
    ]
    return [[start, end], [sides[0], end, sides[1]]]
