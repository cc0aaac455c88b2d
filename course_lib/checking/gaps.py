"""Numbers in words, and how far one is from another."""

import math

from course_lib.theory.inputs.units import power_of_ten

_NEAR = 0.01  # a guess so near needs no factor
_TINY_GAP = 1e-5


def gap_of(predicted: float, measured: float) -> float:
    """(measured - predicted) / |predicted|; around 0 it is 0 for an exact hit, else ± infinity."""
    difference = float(measured - predicted)
    if predicted == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / abs(predicted)


def how_far(guess: float, found: float) -> str:
    """How far a guess is off, as a factor where there is one: "2.33 × too low"."""
    if abs(guess - found) <= _NEAR * abs(found):
        return "right"
    if guess == 0 or found == 0 or (guess < 0) != (found < 0):
        return f"off by {in_words(abs(guess - found), '')}"
    factor = guess / found
    high, times = ("high", factor) if factor > 1 else ("low", 1 / factor)
    return f"{in_words(times, '', 3)} × too {high}"


def in_words(value: float, unit: str, digits: int = 6) -> str:
    """A number with its unit, as a table has it: "1,024 B"; all digits of a whole number."""
    number, size = float(value), abs(value)
    if size >= 10**15 or 0 < size < 1e-4:
        mantissa, _, power = f"{number:.{digits - 1}e}".partition("e")
        ten = power_of_ten(int(power))
        text = ten if float(mantissa) == 1 else f"{float(mantissa):g} × {ten}"
    elif number.is_integer():
        text = f"{int(value):,}"
    else:
        text = f"{number:,.{digits}g}" if size < 10**digits / 2 else f"{number:,.0f}"
    return f"{text} {unit}".rstrip()


def percent(gap: float) -> str:
    """A gap as text: "+3.1 %", "0 %"."""
    if gap and abs(gap) < _TINY_GAP:
        return "under 0.001 %"
    if math.isinf(gap):
        return f"{gap:+} %"
    sign = "-" if gap < 0 else "+" * (gap > 0)
    return f"{sign}{in_words(abs(100 * gap), '', 3)} %"


def judged(gap: float, within: float | None) -> tuple[str, str]:
    """A gap in large type, and a sentence on it: ("3.1 %", "Close: measured 3.1 % …").

    Without `within` the gap is that of a time: no verdict.
    """
    if gap == 0:
        return "no gap", "Exact: the measurement is what theory says."
    if abs(gap) < _TINY_GAP:
        return "no gap", "Equal but for rounding: they differ by less than 0.001 %."
    size = "∞ %" if math.isinf(gap) else percent(abs(gap)).lstrip("+")
    side = "above" if gap > 0 else "below"
    if within is None:
        return size, f"Measured {size} {side} theory. A time is shown and not judged."
    allowed = f"up to {in_words(100 * within, '', 3)} % allowed"
    word = "Close" if abs(gap) <= within else "Too far"
    return size, f"{word}: measured {size} {side} theory ({allowed})."
