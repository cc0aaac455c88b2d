"""Where a prediction, the theory and a measurement lie on one line."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing

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
    line = _Line(column + 20, logarithmic)
    line.ticks = _fitting(_decades if logarithmic else _steps, sizes, words, _RIGHT - line.left)
    sentence = "; ".join(f"{name}: {words(value)}" for name, value in values.items())
    bottom = _ROW * len(values)
    scale = "logarithmic" if logarithmic else "linear"
    drawing = Drawing(bottom + 18, f"{sentence}; on a {scale} scale.")
    _scale(drawing, line, bottom, words)
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
class _Line:
    """Where a value lies, in points from the left."""

    left: float
    logarithmic: bool
    ticks: Sequence[float] = ()

    def place(self, value: float) -> float:
        scale = math.log10 if self.logarithmic else float
        low, high = scale(self.ticks[0]), scale(self.ticks[-1])
        return self.left + (_RIGHT - self.left) * (scale(value) - low) / (high - low)


def _distance(drawing: Drawing, x: float, found: float, y: float) -> None:
    """From your number to what was found."""
    if abs(found - x) > _MARK:
        drawing.line([(x, y), (found, y)], style.YOU, width=3)
        drawing.line([(found, y - 7), (found, y + 7)], style.YOU, width=1.5)


def _scale(drawing: Drawing, line: _Line, bottom: float, words: Words) -> None:
    drawing.line([(line.left, bottom), (_RIGHT, bottom)], style.GREY)
    for tick in line.ticks:
        x = line.place(tick)
        drawing.line([(x, 2), (x, bottom + 3)], style.PALE)
        align = "right" if x > _RIGHT - 9 else "center"
        drawing.write(x, bottom + 14, words(tick), size=9, align=align, colour=style.GREY)


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
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
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
