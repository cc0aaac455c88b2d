"""Curves over one another, with their names beside their ends instead of a key."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Point
from course_lib.theory.inputs.units import power_of_ten

_LEFT, _RIGHT, _TOP, _HEIGHT = 60.0, WIDTH_PT - 128, 46.0, 168.0
_BOTTOM = _TOP + _HEIGHT
_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.PINK, style.SKY, style.ORANGE)
_TICKS, _APART = 6, 12.5


def lines(
    curves: Mapping[str, Sequence[Point]],
    across: str,
    up: str,
    title: str,
    *,
    doubling: tuple[bool, bool] = (False, False),
    level: Mapping[str, float] | None = None,
    mark: Mapping[str, float] | None = None,
) -> Drawing:
    """{"stage 1": [(x, y), …]} with what is measured `across` and `up`, units included.

    `doubling`: whether equal steps double the value, across and up. `level` and `mark` name values
    with a dashed line, horizontal or vertical. Raises ValueError for no curve, for one without two
    points, for an empty title, and for a value that is not above 0 where steps double.
    """
    if not title:
        raise ValueError("title is empty: say what the curves show")
    if not curves or not all(len(points) > 1 for points in curves.values()):
        raise ValueError("curves must hold at least one with two points: give {name: [(x, y), …]}")
    levels, marks = dict(level or {}), dict(mark or {})
    every = [point for points in curves.values() for point in points]
    x_axis = _Axis([x for x, _ in every] + [*marks.values()], doubling[0])
    y_axis = _Axis([y for _, y in every] + [*levels.values()], doubling[1], from_zero=True)
    drawing = Drawing(_BOTTOM + 40, _sentence(curves, across, up, levels | marks))
    drawing.title(title)
    drawing.write(0, _TOP - 14, up, 9, colour=style.GREY)
    drawing.write((_LEFT + _RIGHT) / 2, _BOTTOM + 31, across, 9, "center", style.GREY)
    _grid(drawing, x_axis, y_axis)
    for name, value in marks.items():
        x = _x(x_axis, value)
        drawing.line([(x, _TOP), (x, _BOTTOM)], style.INK, dashed=True)
        align, shift = ("left", 4) if x < (_LEFT + _RIGHT) / 2 else ("right", -4)
        drawing.write(x + shift, _TOP - 2, name, 9, align)
    ends: list[tuple[float, str, str]] = []
    for name, value in levels.items():
        y = _y(y_axis, value)
        drawing.line([(_LEFT, y), (_RIGHT, y)], style.INK, dashed=True)
        ends.append((y, name, style.INK))
    for (name, points), colour in zip(curves.items(), cycle(_COLOURS), strict=False):
        places = [(_x(x_axis, x), _y(y_axis, y)) for x, y in points]
        drawing.line(places, colour, 2)
        drawing.line([places[-1], (_RIGHT, places[-1][1])], colour, 0.5)
        ends.append((places[-1][1], name, colour))
    _names(drawing, sorted(ends))
    return drawing


def _grid(drawing: Drawing, x_axis: "_Axis", y_axis: "_Axis") -> None:
    for value in y_axis.ticks:
        y = _y(y_axis, value)
        drawing.line([(_LEFT, y), (_RIGHT, y)], style.PALE)
        drawing.write(_LEFT - 6, y + 3.3, short(value), 9, "right", style.GREY)
    for value in x_axis.ticks:
        x = _x(x_axis, value)
        drawing.line([(x, _BOTTOM), (x, _BOTTOM + 4)], style.GREY)
        drawing.write(x, _BOTTOM + 15, short(value), 9, "center", style.GREY)
    drawing.line([(_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)], style.GREY)


def _names(drawing: Drawing, ends: Sequence[tuple[float, str, str]]) -> None:
    """Beside the end of each line its name, moved up or down where two would touch."""
    free = _apart([at for at, _, _ in ends])
    for y, (at, name, colour) in zip(free, ends, strict=True):
        drawing.line([(_RIGHT, at), (_RIGHT + 10, y)], colour, 0.8)
        drawing.write(_RIGHT + 14, y + 3.3, name, 9)


def _x(axis: "_Axis", value: float) -> float:
    return _LEFT + axis.part(value) * (_RIGHT - _LEFT)


def _y(axis: "_Axis", value: float) -> float:
    return _TOP + (1 - axis.part(value)) * _HEIGHT


class _Axis:
    """Where values lie between 0 and 1, and the values that are written."""

    def __init__(self, values: Sequence[float], doubling: bool, from_zero: bool = False) -> None:
        self.doubling = doubling
        if doubling:
            if min(values) <= 0:
                raise ValueError(f"{min(values):g} can't be doubled into: give values above 0")
            low = math.floor(math.log2(min(values)))
            high = math.ceil(math.log2(max(values)))
            high = max(high, low + 1)
            step = -(-(high - low) // _TICKS)
            self.ticks = [2.0**power for power in range(low, high + 1, step)]
            self.least, self.most = 2.0**low, 2.0**high
            return
        self.least = 0.0 if from_zero or min(values) < max(values) / 2 else min(values)
        span = max(values) - self.least or 1.0
        rough = span / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step_ = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough)
        self.most = self.least + step_ * math.ceil(span / step_ - 1e-9)
        count = round((self.most - self.least) / step_)
        self.ticks = [self.least + place * step_ for place in range(count + 1)]

    def part(self, value: float) -> float:
        if self.doubling:
            return math.log2(value / self.least) / math.log2(self.most / self.least)
        return (value - self.least) / (self.most - self.least)


def _apart(places: Sequence[float]) -> list[float]:
    """The same places from top to bottom, pushed down where words would touch."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + _APART) if found else place)
    over = max(0.0, found[-1] - (_BOTTOM + 6))
    for index in reversed(range(len(found))):
        limit = found[index + 1] - _APART if index + 1 < len(found) else found[index] - over
        found[index] = min(found[index], limit)
    return found


def short(value: float) -> str:
    """A number in three digits or fewer, a tiny one as "2.4 · 10⁻⁷"."""
    if 0 < abs(value) < 1e-3:
        mantissa, _, power = f"{value:.2g}".partition("e")
        return f"{mantissa} · {power_of_ten(int(power))}" if power else mantissa
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def _sentence(
    curves: Mapping[str, Sequence[Point]], across: str, up: str, named: Mapping[str, float]
) -> str:
    """Both ends of each curve, in words."""
    ends = "; ".join(
        f"{name}: {short(points[0][1])} at {short(points[0][0])}, "
        f"{short(points[-1][1])} at {short(points[-1][0])}"
        for name, points in curves.items()
    )
    lines_ = "".join(f"; {name} at {short(value)}" for name, value in named.items())
    return f"{up} against {across}. {ends}{lines_}."
