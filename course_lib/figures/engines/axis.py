"""A scale: where values lie between its two ends, and which of them are written."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course_lib.theory.inputs.units import power_of_ten

_DIGIT_PT = 6.5  # of a digit at 10 points
_TICKS = 6
Tell = Callable[[float], str]


def short(value: float) -> str:
    """A number in three digits or fewer, a tiny one as "2.4 · 10⁻⁷"."""
    if 0 < abs(value) < 1e-3:
        mantissa, _, power = f"{value:.2g}".partition("e")
        return f"{mantissa} · {power_of_ten(int(power))}" if power else mantissa
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


@dataclass(frozen=True)
class Axis:
    """What is written at its `ticks` and what it is called; `ends` are by default those of these.

    `log`: equal steps multiply.
    """

    ticks: Sequence[float]
    told: Tell = short
    label: str = ""
    log: bool = False
    ends: tuple[float, float] | None = None

    def part(self, value: float) -> float:
        """Where a value lies: 0 at one end, 1 at the other."""
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
    """Multiples of 1, 2 or 5 × 10^n around all values; from 0 with `zero`, or if 0 is near."""
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
    """Powers of `base` around all values. Raises ValueError for one that is not above 0."""
    if min(values) <= 0:
        raise ValueError(f"{min(values):g} has no place among powers: give values above 0")
    low = math.floor(math.log(min(values), base) + 1e-9)
    high = max(low + 1, math.ceil(math.log(max(values), base) - 1e-9))
    step = max(1, math.ceil((high - low) / (most - 1)))
    ticks = [float(base) ** power for power in range(low, high + step, step)]
    return Axis(ticks, told, label, log=True)


def fitting(make: Callable[..., Axis], values: Sequence[float], told: Tell, width: float) -> Axis:
    """As many ticks as there is room for their words, from 6 down to 2."""
    for most in range(_TICKS, 1, -1):
        axis = make(values, told, most=most)
        widest = max(len(told(tick)) for tick in axis.ticks)
        if len(axis.ticks) * (widest + 2) * _DIGIT_PT < width:
            return axis
    return replace(axis, ticks=[axis.ticks[0], axis.ticks[-1]])
