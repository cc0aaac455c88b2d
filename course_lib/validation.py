"""Checks for inputs: one sentence that names the argument, its value and the remedy."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

# Larger than any real count (all tokens ever trained on are about 1e14): a larger value is a typo.
ABSURD = 10**18

# The default of a field that `derive` computes from the others: its type is that of the value, and
# nobody who reads the field meets a None.
DERIVED: Any = None


def derive(record: object, **values: object) -> None:
    """Fill fields of a frozen dataclass that were left at DERIVED, while it is being built."""
    for name, value in values.items():
        if getattr(record, name) is DERIVED:
            object.__setattr__(record, name, value)


def whole(name: str, value: object, least: int = 1, most: int = ABSURD) -> None:
    """Raise ValueError unless `value` is an int with least <= value <= most."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(
            f"{name} must be a whole number, got {value!r}: give an int such as {least}"
        )
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}: give {least} or more")
    if value > most:
        raise ValueError(f"{name} must be at most {most:.3g}, got {value:.3g}: look for a typo")


def number(
    name: str,
    value: object,
    above: float | None = None,
    least: float | None = None,
    most: float = ABSURD,
) -> None:
    """Raise ValueError unless `value` is finite, above `above` and within `least` and `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {value!r}: give an int or a float")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}: give an ordinary number")
    if above is not None and value <= above:
        raise ValueError(f"{name} must be above {above}, got {value}: give a larger number")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}: give a larger number")
    if abs(value) > most:
        raise ValueError(f"{name} must be at most {most:.0e}, got {value:.3g}: look for a typo")


def divisible(name: str, value: int, by_name: str, by: int) -> None:
    """Raise ValueError unless `value` is a multiple of `by`, naming the nearest one that is."""
    if value % by:
        near = max(by, round(value / by) * by)
        raise ValueError(
            f"{name} {value} is not divisible by {by_name} {by}: take {name} {near}, "
            f"or another {by_name} that divides {value}"
        )


def choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise ValueError unless `value` is one of `allowed`, naming the nearest one."""
    allowed = list(allowed)
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of them"
        raise ValueError(f"{name} {value!r} is not one of {', '.join(allowed)}: {hint}")


def fraction(name: str, value: float) -> None:
    """Raise ValueError unless `value` is above 0 and at most 1."""
    number(name, value, above=0)
    if value > 1:
        raise ValueError(f"{name} must be at most 1, got {value}: give a fraction, 0.8 for 80 %")


def flag(name: str, value: object) -> None:
    """Raise ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}: give one of the two")
