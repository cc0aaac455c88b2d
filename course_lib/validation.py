"""Input checks whose one-sentence errors name the argument, its value and the remedy."""

import difflib
import math
import reprlib
from collections.abc import Collection
from typing import Any

# Larger than any real count (all tokens ever trained on are about 1e14): a larger value is a typo.
ABSURD = 10**18
# Smaller than any real quantity: dividing by less may overflow a float.
TINY = 1e-30
# The longest list that a function builds, such as a cluster's ranks or a data set's samples.
MOST_LISTED = 1_000_000

# The default of a field that `derive` computes from the others. It is typed Any, so that the field
# is annotated with the type of its final value: readers of the field never see None.
DERIVED: Any = None


def derive(record: object, **values: object) -> None:
    """Set the fields of a frozen dataclass that were left at DERIVED; call in `__post_init__`."""
    for name, value in values.items():
        if getattr(record, name) is DERIVED:
            object.__setattr__(record, name, value)


class _Short(reprlib.Repr):
    """A repr for error messages: one line, truncated, however large the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 100
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 6

    def repr_int(self, value: int, level: int) -> str:  # noqa: ARG002
        """Exact up to 10^19, then rounded: Python refuses to print more than 4300 digits."""
        if abs(value) < 10**19:
            return repr(value)
        try:
            return f"{value:.6g}"
        except OverflowError:
            sign = "-" if value < 0 else ""
            return f"{sign}10^{round(value.bit_length() * math.log10(2))}"

    def repr_instance(self, value: object, level: int) -> str:
        """The default repr of any other object, joined into one line."""
        return " ".join(super().repr_instance(value, level).split())


_SHORT = _Short()


def told(value: object) -> str:
    """The repr of `value` for an error message: one short line, however large the value is."""
    return _SHORT.repr(value)


def whole(name: str, value: object, least: int = 1, most: int = ABSURD) -> None:
    """Raise ValueError unless `value` is an int with least <= value <= most."""
    if type(value) is int and least <= value <= most:
        return  # the fast path: one step calls this hundreds of times
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(
            f"{name} must be a whole number, got {told(value)}: give an int such as {least}"
        )
    if value < least:
        raise ValueError(
            f"{name} must be at least {least}, got {told(value)}: give {least} or more"
        )
    if value > most:
        raise ValueError(f"{name} must be at most {most:.6g}, got {_got(value)}: {_TYPO}")


def number(
    name: str,
    value: object,
    above: float | None = None,
    least: float | None = None,
    most: float = ABSURD,
) -> None:
    """Raise ValueError unless `value` is finite, above `above` and within `least` and `most`.

    A value with a bound `above` is often a divisor, so one between 0 and TINY is refused too.
    """
    if above is None and type(value) is float and (least or 0) <= value <= most < math.inf:
        return  # the fast path
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {told(value)}: give an int or a float")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}: give an ordinary number")
    if above is not None and value <= above:
        raise ValueError(f"{name} must be above {above}, got {told(value)}: give a larger number")
    if least is not None and value < least:
        raise ValueError(
            f"{name} must be at least {least}, got {told(value)}: give a larger number"
        )
    if abs(value) > most:
        raise ValueError(f"{name} must be at most {most:.6g}, got {_got(value)}: {_TYPO}")
    if above is not None and 0 < value < TINY:
        raise ValueError(f"{name} must be at least {TINY:g}, got {value}: {_TYPO}")


_TYPO = "look for a typo"


def _got(value: float) -> str:
    """A value above its limit, for an error message: in six digits, or as a power of 10."""
    return f"{value:.6g}" if abs(value) < 10**300 else told(value)


def listed(what: str, count: int, remedy: str, most: int = MOST_LISTED) -> None:
    """Raise ValueError if a list of `count` entries is too long to build; `remedy`: what to do.

    Time and memory grow with the list, and a list too long to be read comes from a typo.
    """
    if count > most:
        raise ValueError(f"{what} {told(count)} is above {most:,}, the longest list made: {remedy}")


def divisible(name: str, value: int, by_name: str, by: int) -> None:
    """Raise ValueError unless `value` is a multiple of `by`, naming the nearest one that is."""
    if value % by:
        near = max(by, (value + (by - 1) // 2) // by * by)  # integer arithmetic, exact at any size
        raise ValueError(
            f"{name} {told(value)} is not divisible by {by_name} {told(by)}: take {name} "
            f"{told(near)}, or another value of {by_name} that divides {told(value)}"
        )


def choice(name: str, value: object, allowed: Collection[str]) -> None:
    """Raise ValueError unless `value` is one of `allowed`, naming the nearest one."""
    if not isinstance(value, str) or value not in allowed:
        near = difflib.get_close_matches(told(value).strip("'"), allowed, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of them"
        raise ValueError(f"{name} {told(value)} is not one of {', '.join(allowed)}: {hint}")


def text(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a str of at most 200 characters."""
    if not isinstance(value, str) or len(value) > 200:
        raise ValueError(f"{name} must be a str of a line, got {told(value)}: give a few words")


def fraction(name: str, value: float) -> None:
    """Raise ValueError unless `value` is above 0 and at most 1."""
    number(name, value, above=0)
    if value > 1:
        raise ValueError(f"{name} must be at most 1, got {value}: give a fraction, 0.8 for 80 %")


def flag(name: str, value: object) -> None:
    """Raise ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {told(value)}: give one of the two")
