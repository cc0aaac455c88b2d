"""Amounts as people write them: "24.9 GB", "15 %", "1,024"."""

import math
import re

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
# What a unit measures, and how much of it.
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
    """The number in a text, in `unit`; without one in bytes, FLOP, seconds or as a fraction.

    A text that names no unit is in `unit` already. None for any other text, and for another kind
    of unit; raises ValueError as `split` does.
    """
    found = split(text)
    if found is None:
        return None
    number, written = found
    if written in ("", unit):
        return number
    if written not in UNITS:
        return None
    base, size = UNITS[written]
    wanted, one = UNITS.get(unit, (base if unit == "" else "", 1.0))
    return number * size / one if base == wanted else None


def split(text: str) -> tuple[float, str] | None:
    """The finite number in a text and what is written behind it; None for any other text.

    Raises ValueError for a comma that does not stand between thousands.
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    digits = match[1]
    if "," in digits and not _THOUSANDS.match(digits):
        raise ValueError("write a decimal point (a comma only separates thousands, as in 1,024)")
    number = float(digits.replace(",", "").replace("−", "-"))
    return (number, match[2] or "") if math.isfinite(number) else None
