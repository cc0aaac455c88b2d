"""What kind of wrong an answer is: which part, which direction, which factor; never the value."""

import math
from collections.abc import Callable, Mapping
from operator import eq
from typing import Any

# What a factor between two answers usually means, from the most to the least telling.
_FACTORS: tuple[tuple[float, str], ...] = (
    (1024 / 1000, "KiB and kB are 2.4 % apart: which does the question want?"),
    (1024**2 / 1000**2, "MiB and MB are 4.9 % apart: which does the question want?"),
    (1024**3 / 1000**3, "GiB and GB are 7.4 % apart: which does the question want?"),
    (1e9, "look at the unit (10^9)"),
    (1e6, "look at the unit (10^6)"),
    (1e3, "look at the unit (10^3)"),
    (100, "percent or fraction?"),
    (8, "bits or bytes?"),
    (2, "exactly a factor of 2"),
    (3, "exactly a factor of 3"),
    (4, "exactly a factor of 4"),
    (6, "exactly a factor of 6"),
    (16, "exactly a factor of 16"),
)
_CLOSE = 2e-3  # two factors nearer than this are one
_LARGEST = 10**300  # beyond it, dividing may raise


def kind_of_wrong(given: Any, expected: Any, same: Callable[[Any, Any], bool] = eq) -> str:
    """A few words on the difference, "too large: bits or bytes?"; both plain values.

    `same` says which parts of the two agree.
    """
    if isinstance(given, list | tuple) and isinstance(expected, list | tuple):
        return _of_parts(list(given), list(expected), same)
    if isinstance(given, dict) and isinstance(expected, Mapping):
        return _of_entries(given, expected, same)
    if _number(given) and _number(expected):
        return _of_numbers(given, expected)
    if type(given) is not type(expected):
        return f"it should be {_type_of(expected)}"
    return "it is not that"


def _of_numbers(given: float, expected: float) -> str:
    if abs(given) > _LARGEST or not math.isfinite(given):
        return "it should be an ordinary number"
    if expected == 0 or given == 0:
        return "0 is not it" if given == 0 else f"too {_direction(given, expected)}"
    if (given < 0) != (expected < 0):
        return "it has the wrong sign"
    ratio = abs(given / expected)
    size = "large" if ratio > 1 else "small"
    factor = max(ratio, 1 / ratio) if 1 / _LARGEST < ratio < _LARGEST else math.inf
    for known, meaning in _FACTORS:
        if abs(factor / known - 1) < min(_CLOSE, abs(known - 1) / 10):
            return f"too {size}: {meaning}"
    return f"too {size}, {_how_much(factor)}"


def _how_much(factor: float) -> str:
    if factor < 1.02:
        return "by less than 2 %: rounded too early, or one off?"
    if factor < 1.5:
        return "by less than half"
    if factor < 10:
        return "by less than a factor of 10"
    return "by more than a factor of 10"


def _direction(given: float, expected: float) -> str:
    return "large" if given > expected else "small"


def _of_parts(given: list[Any], expected: list[Any], same: Callable[[Any, Any], bool]) -> str:
    if len(given) != len(expected):
        return f"too {'many' if len(given) > len(expected) else 'few'} parts"
    wrong = [place for place in range(len(given)) if not same(given[place], expected[place])]
    if not wrong:
        return "it is not that"
    place = wrong[0]
    if sorted(map(repr, given)) == sorted(map(repr, expected)):
        return f"the right parts in the wrong order, from part {place + 1} on"
    kind = kind_of_wrong(given[place], expected[place], same)
    return f"part {place + 1} of {len(given)}: {kind}"


def _of_entries(
    given: dict[Any, Any], expected: Mapping[Any, Any], same: Callable[[Any, Any], bool]
) -> str:
    for key, right in expected.items():
        if key not in given:
            return f"nothing for {key!r}"
        if not same(given[key], right):
            return f"{key!r}: {kind_of_wrong(given[key], right, same)}"
    return "more entries than asked for"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _type_of(value: Any) -> str:
    names = {bool: "True or False", str: "a text", list: "a list", tuple: "a list", dict: "a dict"}
    if _number(value):
        return "a number"
    return names.get(type(value), f"a {type(value).__name__}")
