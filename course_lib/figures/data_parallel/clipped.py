"""A gradient of two numbers on two ranks: clipped as a whole, and by each rank for itself."""

import math

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import Point

_TOP, _SIDE = 40.0, 190.0
_COS = [math.cos(math.radians(3 * step)) for step in range(31)]


def clipped(gradient: Point, limit: float, right: Point, wrong: Point) -> Drawing:
    """Left: `gradient` as it is. Right, enlarged: what is left of it, with the circle of `limit`.

    Rank 0 has the first number of each, rank 1 the second.
    """
    told = {"as it is": gradient, "by the global norm": right, "by each own norm": wrong}
    words = "; ".join(f"{name}: ({x:g}, {y:g})" for name, (x, y) in told.items())
    drawing = Drawing(_TOP + _SIDE + 30, f"Clipping to {limit:g}. {words}.")
    drawing.title(f"A gradient, and clipped to the norm {limit:g}")
    first = _Plane(drawing, 40.0, max(*gradient))
    first.arrow(gradient, style.GRADIENTS, f"({gradient[0]:g}, {gradient[1]:g})")
    second = _Plane(drawing, 270.0, 1.1 * max(limit, *wrong, *right))
    second.circle(limit)
    second.arrow(right, style.GREEN, "")
    second.arrow(wrong, style.WARNING, f"own norms: ({wrong[0]:.3g}, {wrong[1]:.3g})")
    x, y = second.place(right)
    above = second.place((0, limit))[1] - 8
    drawing.line([(x, y - 3), (x, above + 4)], style.GREY)
    drawing.write(x, above, f"global norm: ({right[0]:.3g}, {right[1]:.3g})", 9, "center")
    return drawing


class _Plane:
    """Axes from 0 to `most` with the part of rank 0 across and that of rank 1 up."""

    def __init__(self, drawing: Drawing, left: float, most: float) -> None:
        self.drawing, self.left, self.scale = drawing, left, _SIDE / most / 1.05
        bottom = _TOP + _SIDE
        drawing.line([(left, _TOP), (left, bottom), (left + _SIDE, bottom)], style.GREY)
        drawing.write(left + _SIDE, bottom + 26, "on rank 0", 9, "right", style.GREY)
        drawing.write(left - 4, _TOP - 6, "on rank 1", 9, colour=style.GREY)
        drawing.write(left - 6, bottom + 12, "0", 9, colour=style.GREY)

    def place(self, point: Point) -> Point:
        return self.left + point[0] * self.scale, _TOP + _SIDE - point[1] * self.scale

    def arrow(self, to: Point, colour: str, text: str) -> None:
        x, y = self.place(to)
        start = self.place((0, 0))
        self.drawing.line([start, (x, y)], colour, 2.5)
        length = ((x - start[0]) ** 2 + (y - start[1]) ** 2) ** 0.5
        along, side = ((x - start[0]) / length, (y - start[1]) / length), 4.0
        back = (x - 9 * along[0], y - 9 * along[1])
        for sign in (side, -side):
            tip = (back[0] - sign * along[1], back[1] + sign * along[0])
            self.drawing.line([tip, (x, y)], colour, 2.5)
        for row, words in enumerate(text.split(": ")):
            self.drawing.write(x + 8, y + 12 * row, words, 9)

    def circle(self, radius: float) -> None:
        steps = range(31)
        points = [self.place((radius * _COS[i], radius * _COS[30 - i])) for i in steps]
        self.drawing.line(points, style.INK, dashed=True)
        x, y = self.place((radius, 0))
        self.drawing.write(x, y + 14, f"{radius:g}", 9, "center")
