"""Where a prediction, the theory and a measurement lie on one line."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT

COLOURS = {"you": style.YOU, "theory": style.THEORY, "measured": style.MEASURED}
_NAMES, _RIGHT, _ROW, _MARK = 76.0, 515.0, 20.0, 9.0
_CHARACTER = 6.5  # points, of a digit at 10 points
_LOG_FROM = 20  # a smallest value below this part of the largest is lost on a linear scale

Words = Callable[[float], str]


def number_line(values: Mapping[str, float], words: Words) -> Drawing:
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
    line = Line.around(sizes, words, (column + 20, _RIGHT), logarithmic)
    sentence = "; ".join(f"{name}: {words(value)}" for name, value in values.items())
    bottom = _ROW * len(values)
    scale = "logarithmic" if logarithmic else "linear"
    drawing = Drawing(bottom + 18, f"{sentence}; on a {scale} scale.")
    line.draw(drawing, 2, bottom)
    for row, (name, value) in enumerate(values.items()):
        y = _ROW * (row + 0.5)
        drawing.write(0, y + 4, name, bold=True)
        drawing.write(column, y + 4, words(value), align="right")
        if name == "you":
            _distance(drawing, line.place(value), line.place(sizes[-1]), y)
        corner = line.place(value) - _MARK / 2, y - _MARK / 2
        drawing.boxes([(*corner, _MARK, _MARK)], COLOURS[name])
    return drawing


@dataclass
class Line:
    """A scale from `left` to `right`, in points, and the values that `words` writes on it."""

    left: float
    right: float
    logarithmic: bool
    words: Words
    ticks: Sequence[float]

    @classmethod
    def around(
        cls, values: Sequence[float], words: Words, ends: tuple[float, float], logarithmic: bool
    ) -> "Line":
        """A scale on which all `values` lie."""
        left, right = ends
        ticks = _fitting(_decades if logarithmic else _steps, values, words, right - left)
        return cls(left, right, logarithmic, words, ticks)

    def place(self, value: float) -> float:
        """Where a value lies, in points."""
        scale = math.log10 if self.logarithmic else float
        low, high = scale(self.ticks[0]), scale(self.ticks[-1])
        return self.left + (self.right - self.left) * (scale(value) - low) / (high - low)

    def draw(self, drawing: Drawing, top: float, bottom: float) -> None:
        """The axis at `bottom`, and for each tick its value and a line up to `top`."""
        drawing.line([(self.left, bottom), (self.right, bottom)], style.GREY)
        for tick in self.ticks:
            x = self.place(tick)
            drawing.line([(x, top), (x, bottom + 3)], style.PALE)
            align = "right" if x > WIDTH_PT - 14 else "center"
            drawing.write(x, bottom + 14, self.words(tick), 9, align, style.GREY)


def _distance(drawing: Drawing, x: float, found: float, y: float) -> None:
    """From your number to what was found."""
    if abs(found - x) > _MARK:
        drawing.line([(x, y), (found, y)], style.YOU, width=3)
        drawing.line([(found, y - 7), (found, y + 7)], style.YOU, width=1.5)


def _fitting(
    make: Callable[[Sequence[float], int], list[float]],
    values: Sequence[float],
    words: Words,
    width: float,
) -> list[float]:
    """As many ticks as there is room for their words, from 6 down to 2."""
    for count in range(6, 1, -1):
        ticks = make(values, count)
        widest = max(len(words(tick)) for tick in ticks)
        if len(ticks) * (widest + 2) * _CHARACTER < width:
            return ticks
    return [ticks[0], ticks[-1]]


def _decades(values: Sequence[float], count: int) -> list[float]:
    """Powers of ten around all values, at most about `count`."""
    low = math.floor(math.log10(min(values)))
    high = max(low + 1, math.ceil(math.log10(max(values))))
    step = max(1, math.ceil((high - low) / (count - 1)))
    return [10.0**power for power in range(low, high + step, step)]


def _steps(values: Sequence[float], count: int) -> list[float]:
    """Multiples of 1, 2 or 5 × 10^n around 0 and all values, at most about `count`."""
    low, high = min(0.0, *values), max(0.0, *values)
    if low == high:
        high = 1.0
    raw = (high - low) / (count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= raw * (1 - 1e-9))
    return [step * n for n in range(math.floor(low / step), math.ceil(high / step) + 1)]
