"""Figures of chapter 8, beside those of the library."""

import math

from course_lib.figures import *  # noqa: F403
from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow_lines
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import Point

_SIDE, _BOTTOM = 180.0, 230.0


def clipped(gradient: Point, limit: float, right: Point, wrong: Point) -> Drawing:
    """Left: `gradient` as it is. Right, enlarged: what is left of it, with the circle of `limit`.

    Rank 0 has the first number of each, rank 1 the second.
    """
    planes = {
        40.0: {"as it is": (gradient, style.GRADIENTS)},
        270.0: {"global norm": (right, style.GREEN), "own norms": (wrong, style.WARNING)},
    }
    told = [f"{name}: {_told(to)}" for its in planes.values() for name, (to, _) in its.items()]
    drawing = Drawing(_BOTTOM + 30, f"Clipping to {limit:g}. {'; '.join(told)}.")
    drawing.title(f"A gradient, and clipped to the norm {limit:g}")
    for left, its in planes.items():
        corners = [(left, _BOTTOM - _SIDE), (left, _BOTTOM), (left + _SIDE, _BOTTOM)]
        drawing.line(corners, style.GREY)
        drawing.write(left + _SIDE, _BOTTOM + 26, "on rank 0", 9, "right", style.GREY)
        drawing.write(left - 4, _BOTTOM - _SIDE - 6, "on rank 1", 9, colour=style.GREY)
        scale = _SIDE / 1.1 / max(max(to) for to, _ in its.values())
        for name, (to, colour) in its.items():
            x, y = left + to[0] * scale, _BOTTOM - to[1] * scale
            drawing.lines(arrow_lines((left, _BOTTOM), (x, y)), colour, 2.5)
            beside = (x - 14, "right") if to == right else (x + 8, "left")
            for row, words in enumerate((name, _told(to))):
                drawing.write(beside[0], y + 2 + 12 * row, words, 9, beside[1])
    turns = [math.radians(3 * step) for step in range(31)]
    radius = limit * scale
    arc = [(left + radius * math.cos(turn), _BOTTOM - radius * math.sin(turn)) for turn in turns]
    drawing.line(arc, style.INK, dashed=True)
    drawing.write(left + radius, _BOTTOM + 13, f"{limit:g}", 9, "center")
    return drawing


def _told(to: Point) -> str:
    return f"({to[0]:.3g}, {to[1]:.3g})"
