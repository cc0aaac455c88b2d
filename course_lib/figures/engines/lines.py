"""Line charts: axes, curves and stacked areas."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import NamedTuple

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, Point, width_pt
from course_lib.theory.inputs.units import power_of_ten

# --- Axes: the positions of values, and their ticks -----------------------------------------------

_DIGIT_PT = 6.5  # width of a digit at 10 points
_TICKS = 6
Tell = Callable[[float], str]


def short(value: float) -> str:
    """Format a number with three digits or fewer, a tiny one as "2.4 · 10⁻⁷"."""
    if 0 < abs(value) < 1e-3:
        mantissa, _, power = f"{value:.2g}".partition("e")
        return f"{mantissa} · {power_of_ten(int(power))}" if power else mantissa
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


@dataclass(frozen=True)
class Axis:
    """An axis with `ticks`, formatted by `told`; `ends` default to the outer ticks.

    `log`: a logarithmic scale.
    """

    ticks: Sequence[float]
    told: Tell = short
    label: str = ""
    log: bool = False
    ends: tuple[float, float] | None = None

    def part(self, value: float) -> float:
        """The relative position of a value: 0 at the low end, 1 at the high end."""
        low, high = self.ends or (self.ticks[0], self.ticks[-1])
        scale = math.log if self.log else float
        return (scale(value) - scale(low)) / (scale(high) - scale(low))

    def holds(self, value: float) -> bool:
        """Whether a value lies between the ends."""
        return (value > 0 or not self.log) and -1e-9 <= self.part(value) <= 1 + 1e-9


def even(
    values: Sequence[float], told: Tell = short, label: str = "", *, zero: bool = False,
    most: int = _TICKS, whole: bool = False,
) -> Axis:  # fmt: skip
    """A linear axis with ticks at multiples of 1, 2 or 5 × 10^n; includes 0 if `zero` or near."""
    low, high = min(values), max(values)
    if zero or low < high / 2:
        low, high = min(0.0, low), max(0.0, high)
    if low == high:
        high = low + 1.0
    raw = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= raw * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis([step * n for n in range(first, last + 1)], told, label)


def powers(
    values: Sequence[float], told: Tell = short, label: str = "", *, base: int = 10,
    most: int = _TICKS,
) -> Axis:  # fmt: skip
    """A logarithmic axis with ticks at powers of `base`; values must be above 0."""
    low = math.floor(math.log(min(values), base) + 1e-9)
    high = max(low + 1, math.ceil(math.log(max(values), base) - 1e-9))
    step = max(1, math.ceil((high - low) / (most - 1)))
    ticks = [float(base) ** power for power in range(low, high + step, step)]
    return Axis(ticks, told, label, log=True)


def fitting(make: Callable[..., Axis], values: Sequence[float], told: Tell, width: float) -> Axis:
    """The axis from `make` with as many ticks as their labels have room for, 6 down to 2."""
    for most in range(_TICKS, 1, -1):
        axis = make(values, told, most=most)
        widest = max(len(told(tick)) for tick in axis.ticks)
        if len(axis.ticks) * (widest + 2) * _DIGIT_PT < width:
            return axis
    return replace(axis, ticks=[axis.ticks[0], axis.ticks[-1]])


# --- Charts with two axes -------------------------------------------------------------------------

_LEFT, _HEAD, _MARK, _HIGH, _FOOT, _LINE = 62.0, 44.0, 14.0, 172.0, 38.0, 17.0
_NAMES = 128.0  # room for names at the ends of curves
_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.PINK, style.SKY, style.ORANGE)
_APART = 12.5
_SIZE = 9.0


class Curve(NamedTuple):
    """A curve: points from left to right, its text `told` in the key, and dots on it.

    `fill`: a stacked area instead, in steps: each value holds up to the next point.
    """

    points: Sequence[Point]
    colour: str = style.INK
    told: str = ""
    dashed: bool = False
    dots: Sequence[Point] = ()
    width: float = 2.0
    fill: str = ""


@dataclass(frozen=True)
class Frame:
    """The plot area of a drawing, with its two axes."""

    drawing: Drawing
    across: Axis
    up: Axis
    left: float
    top: float
    right: float
    bottom: float
    head: float = 30.0  # baseline of the vertical axis' label

    def x(self, value: float) -> float:
        """The x position of a value, clamped to the frame."""
        return self.left + min(max(self.across.part(value), 0), 1) * (self.right - self.left)

    def y(self, value: float) -> float:
        """The y position of a value, clamped to the frame."""
        return self.bottom - min(max(self.up.part(value), 0), 1) * (self.bottom - self.top)

    def axes(self) -> None:
        """Draw both axes with their ticks and labels."""
        draw, sides = self.drawing, [(self.y(tick), tick) for tick in self._seen(self.up)]
        draw.lines([[(self.left, y), (self.right, y)] for y, _ in sides], style.PALE)
        names = [(self.left - 5, y + 3.3, self.up.told(tick)) for y, tick in sides]
        draw.write_all(names, _SIZE, "right", style.GREY)
        self.ticks_across()
        draw.line([(self.left, self.top), (self.left, self.bottom)], style.GREY)
        draw.write(0, self.head, self.up.label, _SIZE, colour=style.GREY)

    def ticks_across(self) -> None:
        """Draw the horizontal axis: its ticks, grid lines and label."""
        draw, feet = self.drawing, [(self.x(tick), tick) for tick in self._seen(self.across)]
        draw.lines([[(x, self.top), (x, self.bottom + 3)] for x, _ in feet], style.PALE)
        for x, tick in feet:
            label = self.across.told(tick)
            x = min(x, WIDTH_PT - width_pt(label, _SIZE) / 2)
            draw.write(x, self.bottom + 14, label, _SIZE, "center", style.GREY)
        draw.line([(self.left, self.bottom), (self.right, self.bottom)], style.GREY)
        if self.across.label:
            middle = (self.left + self.right) / 2
            draw.write(middle, self.bottom + 29, self.across.label, _SIZE, "center", style.GREY)

    @staticmethod
    def _seen(axis: Axis) -> list[float]:
        return [tick for tick in axis.ticks if axis.holds(tick)]

    def curve(self, curve: Curve) -> None:
        """Draw the part of a curve inside the frame, and its dots."""
        inside = [(x, y) for x, y in curve.points if self.across.holds(x) and self.up.holds(y)]
        if len(inside) > 1:
            places = [(self.x(x), self.y(y)) for x, y in inside]
            self.drawing.line(places, curve.colour, curve.width, curve.dashed)
        for x, y in curve.dots:
            self.drawing.dot(self.x(x), self.y(y), curve.colour, 4)

    def stack(self, curves: Sequence[Curve], gaps: bool = False) -> None:
        """Draw stacked areas in steps; the highest first, since lower ones cover it.

        `gaps`: leave a gap between steps.
        """
        tops = [0.0] * len(curves[0].points)
        for fill, tops in reversed(
            [
                (one.fill, tops := [low + y for low, (_, y) in zip(tops, one.points, strict=True)])
                for one in curves
            ]
        ):
            points = [(self.x(curves[0].points[0][0]), self.bottom)]
            for (x, _), y in zip(curves[0].points, map(self.y, tops), strict=True):
                if y != points[-1][1]:
                    points += [(self.x(x), points[-1][1]), (self.x(x), y)]
            points += [(self.right, points[-1][1]), (self.right, self.bottom)]
            self.drawing.area(points, fill)
        if gaps:
            edges = [self.x(x) for x, _ in curves[0].points[1:]]
            wide = min(3.0, (self.right - self.left) / (5 * len(edges) + 5))
            ends = [[(x, self.top), (x, self.bottom - 0.5)] for x in edges]
            self.drawing.lines(ends, style.WHITE, wide)

    def marks(self, marks: Mapping[str, float], through: str = "") -> None:
        """Draw vertical lines with labels above the frame; the line `through` is solid."""
        # The rightmost label is the lowest, so that no line crosses another label.
        ranked = sorted(marks.items(), key=lambda mark: mark[1])
        for row, (name, value) in enumerate(ranked):
            x, y = self.x(value), self.top - 6 - _MARK * (len(marks) - 1 - row)
            self.drawing.line([(x, y + 3), (x, self.bottom)], dashed=name != through)
            self.drawing.write(min(x + 3, WIDTH_PT - width_pt(name, _SIZE)), y, name, _SIZE)


def graph(
    curves: Mapping[str, Curve],
    title: str,
    across: Axis,
    up: Axis,
    *,
    marks: Mapping[str, float] | None = None,
    levels: Mapping[str, float] | None = None,
    notes: Sequence[str] = (),
    high: float = _HIGH,
    gaps: bool = False,
    more: float = 0.0,
    beside: bool = False,
) -> Frame:
    """Draw curves on two axes and a key with their `told`; returns the frame.

    `marks` are vertical lines, `levels` horizontal ones, named in the key or `beside` the frame.
    `gaps`: between the steps of areas. `more`: room below, for the caller to draw in.
    """
    marks = marks or {}
    edges = across.ends or (across.ticks[0], across.ticks[-1])
    for place, (name, value) in enumerate((levels or {}).items()):
        flat = Curve([(edge, value) for edge in edges], dashed=not place, width=1.6)
        curves = {**curves, name: flat}
    named = (levels or {}) if beside else {}
    key_texts = {name: curve.told for name, curve in curves.items() if name and name not in named}
    head = _HEAD + _MARK * len(marks) - (0 if title else 18)
    foot = _FOOT + _LINE * (len(key_texts) + len(notes)) + 4
    words = [f"{name}: {said}" if said else name for name, said in key_texts.items()]
    heading = " against ".join(filter(None, (up.label, across.label)))
    sentence = ". ".join(
        filter(None, (title, heading, "; ".join([*words, *named, *marks, *notes])))
    )
    drawing = Drawing(head + high + foot + more, f"{sentence}.")
    drawing.title(title)
    left = max(_LEFT, max(width_pt(up.told(tick), _SIZE) for tick in up.ticks) + 8)
    right = WIDTH_PT - 14 - max((width_pt(name, _SIZE) + 6 for name in named), default=0.0)
    frame = Frame(drawing, across, up, left, head, right, head + high, 30.0 if title else 12.0)
    frame.axes()
    _names(frame, sorted((frame.y(value), name, style.INK) for name, value in named.items()))
    if stacked := [curve for curve in curves.values() if curve.fill]:
        frame.stack(stacked, gaps)
    frame.marks(marks, next(iter(marks), ""))
    for curve in curves.values():
        if not curve.fill:
            frame.curve(curve)
    y = frame.bottom + _FOOT + 10
    for name, said in key_texts.items():
        curve = curves[name]
        if curve.fill:
            drawing.boxes([(_LEFT + 9, y - 9, 12, 11)], curve.fill)
        elif curve.points:
            drawing.line(
                [(_LEFT, y - 3), (_LEFT + 30, y - 3)], curve.colour, curve.width, curve.dashed
            )
        elif curve.dots:
            drawing.dot(_LEFT + 15, y - 3, curve.colour, 4)
        drawing.write(_LEFT + 38, y, name)
        drawing.write(frame.right, y, said, align="right")
        y += _LINE
    for note in notes:
        drawing.write(_LEFT, y, note, _SIZE, colour=style.GREY)
        y += _LINE
    return frame


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
    """Draw {"stage 1": [(x, y), …]}; `across` and `up` are the axis labels, units included.

    Names are beside the curves' ends. `doubling`: whether the axes (across, up) are logarithmic
    with base 2. `level` and `mark` are named dashed lines, horizontal or vertical.
    """
    levels, marks = dict(level or {}), dict(mark or {})
    every = [point for points in curves.values() for point in points]
    wide = [*(x for x, _ in every), *marks.values()]
    high = [*(y for _, y in every), *levels.values()]
    doubled = partial(powers, base=2, most=7)
    x_axis = (doubled if doubling[0] else partial(even, most=7))(wide, label=across)
    y_axis = (doubled if doubling[1] else partial(even, zero=True, most=7))(high, label=up)
    if doubling[0]:  # the curves end at the names
        x_axis = replace(x_axis, ends=(x_axis.ticks[0], max(wide)))
    ends = "; ".join(
        f"{name}: {short(points[0][1])} at {short(points[0][0])}, "
        f"{short(points[-1][1])} at {short(points[-1][0])}"
        for name, points in curves.items()
    )
    named = "".join(f"; {name} at {short(value)}" for name, value in (levels | marks).items())
    top = _HEAD + _MARK * len(marks)
    drawing = Drawing(top + _HIGH + 38, f"{up} against {across}. {ends}{named}.")
    drawing.title(title)
    frame = Frame(drawing, x_axis, y_axis, _LEFT, top, WIDTH_PT - _NAMES, top + _HIGH)
    frame.axes()
    frame.marks(marks)
    names = []
    for name, value in levels.items():
        y = frame.y(value)
        drawing.line([(frame.left, y), (frame.right, y)], dashed=True)
        names.append((y, name, style.INK))
    for (name, points), colour in zip(curves.items(), cycle(_COLOURS), strict=False):
        frame.curve(Curve(points, colour))
        x, y = frame.x(points[-1][0]), frame.y(points[-1][1])
        drawing.line([(x, y), (frame.right, y)], style.GREY, 0.5, dashed=True)
        names.append((y, name, colour))
    _names(frame, sorted(names))
    return drawing


def loss(curves: Mapping[str, Sequence[float]], what: str = "loss") -> Drawing:
    """Draw one curve per name, distinguished by colour and dashes; starts at update 1.

    Of visually identical curves one is drawn, and for the others the key has the largest
    difference. `what`: the name of the values.
    """
    every = [value for values in curves.values() for value in values]
    hidden = _hidden(curves, 0.005 * (max(every) - min(every)))  # less than half a line's width
    looks, drawn = cycle(style.LINES), dict[str, Curve]()
    for name, values in curves.items():
        colour, dashed = next(looks) if name not in hidden else (style.WHITE, False)
        points = [] if name in hidden else list(enumerate(values, 1))
        ends = f"{short(values[0])} at update 1, {short(values[-1])} at update {len(values)}"
        told, alone = hidden.get(name, f"{what} {ends}"), points if len(points) == 1 else []
        # Later lines are thinner, so that both are visible where they overlap.
        width = max(1.0, 2.6 - 0.6 * sum(bool(one.points) for one in drawn.values()))
        drawn[name] = Curve(points, colour, told, dashed, alone, width)
    longest = max(map(len, curves.values()))
    across = replace(
        even([0, max(2, longest)], label="update", whole=True), ends=(1, max(2, longest))
    )
    return graph(drawn, "", across, even(every, label=what)).drawing


def _hidden(curves: Mapping[str, Sequence[float]], seen: float) -> dict[str, str]:
    """{name: text} of the curves hidden behind an earlier one, with the largest difference."""
    hidden: dict[str, str] = {}
    for name, values in curves.items():
        for before, others in curves.items():
            if before == name:
                break
            if before in hidden or len(others) != len(values):
                continue
            apart = max(abs(one - other) for one, other in zip(values, others, strict=True))
            if apart <= seen:
                far = f"at most {short(apart)} away from" if apart else "the same numbers as"
                hidden[name] = f"{far} {before}"
                break
    return hidden


def _names(frame: Frame, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write each name beside the end of its line, moved vertically to avoid overlaps."""
    places: list[float] = []
    for at, _, _ in ends:
        places.append(max(at, places[-1] + _APART) if places else at)
    limit = frame.bottom
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - _APART
    for y, (at, name, colour) in zip(places, ends, strict=True):
        frame.drawing.line([(frame.right, at), (frame.right + 10, y)], colour, 0.8)
        frame.drawing.write(frame.right + 14, y + 3.3, name, _SIZE)
