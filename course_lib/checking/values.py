"""Parses amounts with units, converts values to plain data, and describes how two values differ."""

import math
import numbers
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import eq
from typing import Any

from course_lib.checking.exercises import Wrong

_AMOUNT = re.compile(r"\s*([-+−]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([^\d\s].*?)?\s*", re.I)
_THOUSANDS = re.compile(r"[-+−]?[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"": 1.0, "m": 1e-3, "µ": 1e-6, "μ": 1e-6, "u": 1e-6, "n": 1e-9}
_PREFIXES = {
    "B": _DECIMAL | _BINARY,
    "FLOP": _DECIMAL,
    "B/s": _DECIMAL,
    "FLOP/s": _DECIMAL,
    "s": _SMALL,
}
# Each unit: its base unit, and its size in that.
UNITS = {
    **{
        f"{prefix}{base}": (base, size)
        for base, prefixes in _PREFIXES.items()
        for prefix, size in prefixes.items()
    },
    "bytes": ("B", 1.0),
    "min": ("s", 60.0),
    "h": ("s", 3600.0),
    "days": ("s", 86_400.0),
    "%": ("%", 0.01),
}


def amount(text: str, unit: str = "") -> float | None:
    """The number in a text, converted to `unit`, or to the base unit if that is "".

    A text without a unit is in `unit` already. None if the text is not a number, or has an unknown
    or incompatible unit; raises ValueError as `split` does.
    """
    parts = split(text)
    if parts is None:
        return None
    number, written = parts
    if written in ("", unit):
        return number
    if written not in UNITS:
        return None
    base, size = UNITS[written]
    wanted, one = UNITS.get(unit, (base if unit == "" else "", 1.0))
    return number * size / one if base == wanted else None


def split(text: str) -> tuple[float, str] | None:
    """(finite number, unit as written) of a text; None for any other text.

    Raises ValueError for a comma that is not a thousands separator.
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    digits = match[1]
    if "," in digits and not _THOUSANDS.match(digits):
        raise ValueError("write a decimal point (a comma only separates thousands, as in 1,024)")
    number = float(digits.replace(",", "").replace("−", "-"))
    return (number, match[2] or "") if math.isfinite(number) else None


# Methods of the builtin types, which a subclass cannot override.
_SIMPLE: Mapping[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
}
_GROUPS: tuple[Any, ...] = (list, tuple, set, frozenset)
_TRUSTED = {bool, int, float, complex, str, bytes, Fraction, type(None), type(...)}


def to_builtin(value: Any) -> Any:
    """Convert numbers, texts and containers of subclasses to Python's builtin types, recursively.

    Raises Wrong for an object that pretends to be of another type.
    """
    kind = type(value)
    if kind in _TRUSTED or callable(value):
        return value
    for base, own in _SIMPLE.items():
        if issubclass(kind, base):
            return own(value)
    if issubclass(kind, dict):
        return {to_builtin(key): to_builtin(item) for key, item in dict.items(value)}
    for base in _GROUPS:
        if issubclass(kind, base):
            return base(map(to_builtin, base.__iter__(value)))
    if value.__class__ is not kind:
        raise Wrong(f"wants a value, got an object of {kind.__name__} that says it is another type")
    if issubclass(kind, numbers.Integral):
        return int.__int__(operator.index(value))
    return float.__float__(float(value)) if issubclass(kind, numbers.Real) else value


# What a factor between two answers usually means, from the most to the least specific.
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
_HOW_MUCH = {1.02: "2 %: rounded too early, or one off?", 1.5: "half", 10: "a factor of 10"}
_CLOSE = 2e-3  # two factors count as equal within this relative difference
_LARGEST = 10**300  # beyond it, division may raise


def kind_of_wrong(given: Any, expected: Any, same: Callable[[Any, Any], bool] = eq) -> str:
    """Describe the difference of two plain values, such as "too large: bits or bytes?".

    `same(given, expected)` says whether two parts agree.
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
    if given == 0:
        return "0 is not it"
    if expected == 0:
        return f"too {'large' if given > 0 else 'small'}"
    if (given < 0) != (expected < 0):
        return "it has the wrong sign"
    ratio = abs(given / expected)
    size = "large" if ratio > 1 else "small"
    factor = max(ratio, 1 / ratio) if 1 / _LARGEST < ratio < _LARGEST else math.inf
    for known, meaning in _FACTORS:
        if abs(factor / known - 1) < min(_CLOSE, abs(known - 1) / 10):
            return f"too {size}: {meaning}"
    for most, much in _HOW_MUCH.items():
        if factor < most:
            return f"too {size}, by less than {much}"
    return f"too {size}, by more than a factor of 10"


def _of_parts(given: list[Any], expected: list[Any], same: Callable[[Any, Any], bool]) -> str:
    if len(given) != len(expected):
        return f"too {'many' if len(given) > len(expected) else 'few'} parts"
    wrong = [index for index in range(len(given)) if not same(given[index], expected[index])]
    if not wrong:
        return "it is not that"
    index = wrong[0]
    if sorted(map(repr, given)) == sorted(map(repr, expected)):
        return f"the right parts in the wrong order, from part {index + 1} on"
    kind = kind_of_wrong(given[index], expected[index], same)
    return f"part {index + 1} of {len(given)}: {kind}"


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
