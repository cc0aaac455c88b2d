"""Units and their formatting: the library computes in bytes, and text is made only for output."""

import re
from functools import partial
from typing import Annotated

from course_lib.checked import NotNegative, check_public
from course_lib.validation import number, told, whole

# Decimal units (SI): "GB" as used for disks, network links and on GPU data sheets.
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
# Binary units (IEC 80000-13), used by torch, nvidia-smi and operating systems.
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_DECIMAL = {"TB": TB, "GB": GB, "MB": MB, "kB": KB}
_BINARY = {"TiB": TIB, "GiB": GIB, "MiB": MIB, "KiB": KIB}
_FLOP = {"Z": 10**21, "E": 10**18, "P": 10**15, "T": 10**12, "G": 10**9, "M": 10**6}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_COUNTS = {"T": 10**12, "B": 10**9, "M": 10**6, "K": 10**3}


def gb(size_bytes: NotNegative) -> float:
    """Bytes as decimal gigabytes: size / 10^9."""
    return size_bytes / GB


def gib(size_bytes: NotNegative) -> float:
    """Bytes as binary gibibytes: size / 2^30. 1 GiB = 1.0737 GB."""
    return size_bytes / GIB


def format_bytes(
    size_bytes: NotNegative,
    unit: Annotated[str, ("GB", "GiB")] = "GB",
    digits: Annotated[int, partial(whole, least=0, most=12)] = 2,
) -> str:
    """Text for a size: `unit` "GB" picks kB, MB, GB, TB; "GiB" picks KiB, MiB, GiB, TiB."""
    for name, factor in (_DECIMAL if unit == "GB" else _BINARY).items():
        if size_bytes >= factor:
            return f"{size_bytes / factor:.{digits}f} {name}"
    return f"{size_bytes:.0f} B"


def format_count(count: NotNegative) -> str:
    """Text for a count: 6_738_415_616 parameters are "6.74B" (B = billion, 10^9)."""
    for name, factor in _COUNTS.items():
        if count >= factor:
            return f"{count / factor:.3g}{name}"
    return format_number(count, 6)


def format_number(
    value: Annotated[float, partial(number, most=1e40)],
    digits: Annotated[int, partial(whole, least=1, most=12)] = 3,
) -> str:
    """Text for a number, to `digits` digits but never in exponent notation: 1258.4 is "1,258".

    Large numbers keep all digits before the decimal point.
    """
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    text = f"{value:,.{digits}g}"
    if "e-" not in text:
        return text
    zeros = int(text.partition("e-")[2])
    return f"{value:.{zeros + digits - 1}f}".rstrip("0")


def power_of_ten(power: Annotated[int, partial(whole, least=-400, most=400)]) -> str:
    """Text for a power of ten: -5 is "10⁻⁵". Raises ValueError beyond ±400, outside float range."""
    return f"10{str(power).translate(_SUPERSCRIPTS)}"


def format_flop(flop: Annotated[float, partial(number, least=0, most=1e40)]) -> str:
    """Text for an amount of computation, not a rate: 196_608_000_000_000 is "196.6 TFLOP"."""
    for name, factor in _FLOP.items():
        if flop >= factor:
            return f"{format_number(flop / factor, 4)} {name}FLOP"
    return f"{format_number(flop, 6)} FLOP"


def format_seconds(seconds: Annotated[float, partial(number, least=0, most=1e18)]) -> str:
    """Text for a time, three digits in s, ms, µs or ns: 0.0000478 is "47.8 µs"."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * factor:
            value = seconds / factor
            return f"{format_number(value)} {unit}"
    return f"{format_number(seconds / 1e-9)} ns"


def format_duration(seconds: Annotated[float, partial(number, least=0, most=1e18)]) -> str:
    """Text for a long time: 1156 is "19.3 min"; below two minutes it is `format_seconds`."""
    for unit, factor in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.9995 * factor:
            value = seconds / factor
            return f"{format_number(value)} {unit}"
    return format_seconds(seconds) if seconds else "0 s"


def parse_count(text: str) -> int:
    """Parse a count such as "70b", "13B", "124M" or "4k": B is billion (10^9), M million (10^6).

    Raises ValueError when the text is not a number with one of those letters.
    """
    shown = told(text)
    match = re.fullmatch(
        r"\s*(\d{1,40}(?:\.\d{1,40})?)\s*([kmbt]?)\s*", shown.strip("'"), re.IGNORECASE
    )
    if not match:
        raise ValueError(f"text {shown} is not a count: write it like '70b', '1.5B' or '124M'")
    return round(float(match[1]) * _COUNTS.get(match[2].upper(), 1))


check_public(globals())
