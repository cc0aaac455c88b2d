"""Amounts as people write them: "24.9 GB", "15 %", "1,024"."""

import math
import re

_AMOUNT = re.compile(r"\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([^\d\s].*?)?\s*", re.I)
_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"m": 1e-3, "µ": 1e-6, "μ": 1e-6, "u": 1e-6, "n": 1e-9}
UNITS = {
    **{f"{prefix}B": size for prefix, size in (_PREFIXES | _BINARY).items()},
    **{f"{prefix}FLOP": size for prefix, size in _PREFIXES.items()},
    **{f"{prefix}B/s": size for prefix, size in _PREFIXES.items()},
    **{f"{prefix}FLOP/s": size for prefix, size in _PREFIXES.items()},
    **{f"{prefix}s": size for prefix, size in ({"": 1.0} | _SMALL).items()},
    "bytes": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "%": 0.01,
}


def amount(text: str) -> float | None:
    """The number in a text, in bytes, FLOP, seconds or as a fraction; None for any other text."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    number, unit = match[1].replace(",", ""), match[2] or ""
    if unit and unit not in UNITS:
        return None
    return float(number) * UNITS.get(unit, 1.0)


def plain_number(text: str, unit: str) -> float | None:
    """The finite number in "1,024" or "3e9", with or without exactly this unit; None for others."""
    number = text.strip().removesuffix(unit).replace(",", "").replace("−", "-")
    try:
        found = float(number)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
