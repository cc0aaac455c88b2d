"""How far the numbers of each format reach, on one scale of powers of ten."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.key import key, key_height
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.theory.inputs.units import power_of_ten

_LEFT, _RIGHT, _TOP, _ROW, _BAR = 92.0, WIDTH_PT - 24, 24.0, 24.0, 15.0
_MARK = 20.0  # the names of marks
_KEY = {"all digits": style.BLUE, "fewer digits (subnormal)": style.YELLOW}
_STEP = 10  # powers of ten between two ticks
Range = tuple[float, float, float]


def number_ranges(
    formats: Mapping[str, Range], title: str, marks: Mapping[str, float] | None = None
) -> Drawing:
    """{"fp16": (smallest above 0, smallest with all digits, largest)}: a bar for each.

    Subnormal numbers, which lack digits, are yellow; `marks` are named vertical lines. Raises
    ValueError without a format, and for numbers that are not finite, above 0 and rising.
    """
    if not formats:
        raise ValueError("formats is empty: give {name: (smallest, with all digits, largest)}")
    named = dict(marks or {})
    for name, values in {**formats, **{name: (at,) for name, at in named.items()}}.items():
        if not 0 < values[0] <= values[-1] < math.inf or list(values) != sorted(values):
            raise ValueError(f"{name!r} has {values}: give finite numbers above 0, rising")
    scale = _Scale.of([*named.values(), *(end for row in formats.values() for end in row)])
    top = _TOP + (_MARK if named else 0)
    bottom = top + _ROW * len(formats)
    drawing = Drawing(bottom + 26 + key_height(_KEY, _LEFT), _sentence(formats, title, named))
    drawing.title(title)
    for power in range(scale.low, scale.high + 1, _STEP):
        x = scale.x(power)
        drawing.line([(x, top), (x, bottom + 3)], style.PALE)
        drawing.write(x, bottom + 15, _power(power), 9, "center", style.GREY)
    for row, (name, values) in enumerate(formats.items()):
        y = top + _ROW * (row + 0.5) - _BAR / 2
        start, full, end = (scale.x(math.log10(value)) for value in values)
        drawing.write(_LEFT - 8, y + 12, name, align="right")
        drawing.boxes([(start, y, full - start, _BAR)], style.YELLOW)
        drawing.boxes([(full, y, end - full, _BAR)], style.BLUE)
    for name, at in named.items():
        x = scale.x(math.log10(at))
        drawing.line([(x, top - 4), (x, bottom)], style.INK, dashed=True)
        drawing.write(x, top - 9, name, 9, "center")
    key(drawing, _KEY, _LEFT, bottom + 24)
    return drawing


@dataclass(frozen=True)
class _Scale:
    """From which to which power of ten."""

    low: int
    high: int

    @classmethod
    def of(cls, values: list[float]) -> "_Scale":
        low, high = math.log10(min(values)) / _STEP, math.log10(max(values)) / _STEP
        return cls(_STEP * math.floor(low), _STEP * (math.floor(high) + 1))

    def x(self, power: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (power - self.low) / (self.high - self.low)


def _power(power: float) -> str:
    return power_of_ten(round(power))


def _sentence(formats: Mapping[str, Range], title: str, named: Mapping[str, float]) -> str:
    rows = []
    for name, values in formats.items():
        least, full, most = (_power(math.log10(value)) for value in values)
        rows.append(f"{name} reaches from {least} to {most}, with all digits from {full}")
    marks = (f"{name} is at {_power(math.log10(at))}" for name, at in named.items())
    return f"{title}. Powers of ten, rounded. {'; '.join([*rows, *marks])}."
