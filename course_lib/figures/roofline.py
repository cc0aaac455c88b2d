"""The roofline of a chip, with the operations of a model on it."""

import math
from collections.abc import Sequence

from course_lib.figures import style
from course_lib.figures.picture import WIDTH_PT, Point
from course_lib.figures.sheet import Sheet
from course_lib.figures.text import counted
from course_lib.theory.compute.roofline import Operation, Roofline
from course_lib.theory.inputs.hardware import Accelerator
from course_lib.theory.inputs.units import format_flop

_LEFT, _TOP, _WIDTH, _HEIGHT = 78.0, 44.0, 424.0, 190.0
_LEAST, _DECADES = 0.1, 5  # FLOP per byte from 10^-1 to 10^4
_DOTS = (style.BLUE, style.VERMILION, style.GREEN, style.PINK)


def on_roofline(result: Roofline, title: str = "") -> Sheet:
    """Attainable FLOP/s against FLOP per byte, both logarithmic, one dot for each operation."""
    sheet = Sheet(_TOP + _HEIGHT + 46 + 17 * len(result.operations), sentence(result))
    sheet.write(0, 13, title or result.accelerator.name, size=style.TITLE_PT, bold=True)
    place = _Scale(result.accelerator)
    _axes(sheet, place)
    ridge = result.accelerator.ridge_flop_per_byte
    corner = place(ridge, result.accelerator.peak_flop_per_s)
    end = place(_LEAST * 10**_DECADES, result.accelerator.peak_flop_per_s)
    sheet.line(
        [place(_LEAST, _LEAST * result.accelerator.memory_bytes_per_s), corner, end], width=2
    )
    sheet.line([corner, (corner[0], _TOP + _HEIGHT)], style.GREY, dashed=True)
    sheet.write(corner[0] + 5, _TOP + _HEIGHT - 8, f"ridge {ridge:.3g}", colour=style.GREY)
    _dots(sheet, place, result.operations)
    return sheet


def sentence(result: Roofline) -> str:
    """What limits each operation, and the part of the peak that is left, in words."""
    ridge = result.accelerator.ridge_flop_per_byte
    limits = ", ".join(
        f"{op.name} by {'compute' if op.flop_per_byte >= ridge else 'memory'} "
        f"({_short(op.flop_per_byte)} FLOP/byte)"
        for op in result.operations
    )
    pass_of = f"{result.accelerator.name}, {counted(result.tokens, 'token')}"
    allowed = f"the roofline allows {result.peak_fraction:.1%} of the peak for the whole pass"
    return f"{pass_of}: {limits}; {allowed}."


class _Scale:
    """Where an intensity and a rate lie on the sheet; the top of the frame is above the peak."""

    def __init__(self, chip: Accelerator) -> None:
        self.top = math.ceil(math.log10(chip.peak_flop_per_s))
        self.decades = math.ceil(self.top - math.log10(_LEAST * chip.memory_bytes_per_s))

    def __call__(self, intensity: float, rate: float) -> tuple[float, float]:
        across = math.log10(intensity / _LEAST) / _DECADES
        down = (self.top - math.log10(rate)) / self.decades
        return (
            _LEFT + min(max(across, 0), 1) * _WIDTH,
            _TOP + min(max(down, 0), 1) * _HEIGHT,
        )


def _axes(sheet: Sheet, place: _Scale) -> None:
    bottom = _TOP + _HEIGHT
    for decade in range(place.decades + 1):
        rate = 10 ** (place.top - decade)
        _, y = place(1, rate)
        sheet.line([(_LEFT, y), (_LEFT + _WIDTH, y)], style.PALE)
        sheet.write(_LEFT - 6, y + 4, _rate(rate), align="right", colour=style.GREY, size=9)
    for decade in range(_DECADES + 1):
        x, _ = place(_LEAST * 10**decade, 1)
        sheet.line([(x, _TOP), (x, bottom)], style.PALE)
        text = _short(_LEAST * 10**decade)
        sheet.write(x, bottom + 14, text, align="center", colour=style.GREY, size=9)
    sheet.line([(_LEFT, _TOP), (_LEFT, bottom), (_LEFT + _WIDTH, bottom)])
    sheet.write(_LEFT + _WIDTH / 2, bottom + 30, "FLOP per byte of memory traffic", align="center")
    sheet.write(0, 30, "FLOP/s that the chip can reach (both axes logarithmic)", colour=style.GREY)


def _dots(sheet: Sheet, place: _Scale, operations: Sequence[Operation]) -> None:
    dots = [place(op.flop_per_byte, op.attainable_flop_per_s) for op in operations]
    numbers = _beside(dots)
    for row, op in enumerate(operations):
        colour = _DOTS[row % len(_DOTS)]
        sheet.dot(*dots[row], colour, radius=5)
        sheet.write(*numbers[row], str(row + 1), size=9, align="center", colour=colour, bold=True)
        line = _TOP + _HEIGHT + 52 + 17 * row
        sheet.dot(_LEFT + 6, line - 4, colour, radius=6)
        number, x = str(row + 1), _LEFT + 6
        sheet.write(x, line - 1, number, size=8, align="center", colour=style.WHITE, bold=True)
        sheet.write(_LEFT + 20, line, op.name)
        sheet.write(_LEFT + 120, line, f"{_short(op.flop_per_byte)} FLOP/byte")
        rate = _rate(op.attainable_flop_per_s)
        sheet.write(WIDTH_PT - 20, line, f"at most {rate}", align="right")


def _beside(dots: Sequence[Point]) -> list[Point]:
    """A place for the number of each dot; numbers of dots on one place stand in a row.

    Below and to the right of the slope, above it where the axis is near, below the flat roof.
    """
    found: list[Point] = []
    for x, y in dots:
        step = 11
        across, down = x + step, y + 16
        if x > _LEFT + _WIDTH - 50:
            across, step = x, -11
        if down > _TOP + _HEIGHT - 2:
            across, down, step = x - 9, y - 8, -11
        while any(abs(across - a) < 10 and abs(down - d) < 10 for a, d in found):
            across += step
        found.append((across, down))
    return found


def _rate(flop_per_s: float) -> str:
    return f"{format_flop(flop_per_s)}/s"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
