"""The roofline of a chip, with the operations of a model on it."""

import math
from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT, Point
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted
from course_lib.theory.compute.roofline import Operation, Roofline
from course_lib.theory.inputs.hardware import Accelerator
from course_lib.theory.inputs.units import format_flop, format_number

_LEFT, _TOP, _WIDTH, _HEIGHT = 78.0, 44.0, 424.0, 190.0
_LEAST, _DECADES = 0.1, 5  # FLOP per byte from 10^-1 to 10^4
_ABOVE = 0.3  # decades between the highest roof and the frame
_NUMBER = 15.0  # from one dot's number to the next


def on_roofline(result: Roofline, title: str = "") -> Sheet:
    """Attainable FLOP/s against FLOP per byte, both logarithmic, one dot for each operation."""
    sheet = Sheet(_TOP + _HEIGHT + 46 + 17 * len(result.operations), sentence(result))
    sheet.title(title or result.accelerator.name)
    place = _Scale(result.accelerator)
    _axes(sheet, place)
    ridge = result.accelerator.ridge_flop_per_byte
    corner = place(ridge, result.accelerator.peak_flop_per_s)
    end = place(_LEAST * 10**_DECADES, result.accelerator.peak_flop_per_s)
    sheet.line(
        [place(_LEAST, _LEAST * result.accelerator.memory_bytes_per_s), corner, end], width=2
    )
    sheet.line([corner, (corner[0], _TOP + _HEIGHT)], style.GREY, dashed=True)
    sheet.write(corner[0] + 5, _TOP + _HEIGHT - 8, f"ridge {_short(ridge)}", colour=style.GREY)
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
    """Where an intensity and a rate lie on the sheet; the roof lies below the frame's top."""

    def __init__(self, chip: Accelerator) -> None:
        self.top = math.log10(chip.peak_flop_per_s) + _ABOVE
        self.bottom = math.floor(math.log10(_LEAST * chip.memory_bytes_per_s))

    def __call__(self, intensity: float, rate: float) -> tuple[float, float]:
        across = math.log10(intensity / _LEAST) / _DECADES
        down = (self.top - math.log10(rate)) / (self.top - self.bottom)
        return (
            _LEFT + min(max(across, 0), 1) * _WIDTH,
            _TOP + min(max(down, 0), 1) * _HEIGHT,
        )


def _axes(sheet: Sheet, place: _Scale) -> None:
    bottom = _TOP + _HEIGHT
    for decade in range(place.bottom, math.floor(place.top) + 1):
        rate = 10.0**decade
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
    for row, (dot, number) in enumerate(zip(dots, _beside(dots), strict=True)):
        below = number[1] > dot[1] + 12
        sheet.line([dot, (number[0], number[1] - 11) if below else number], width=0.6)
        sheet.write(*number, str(row + 1), size=9, align="center", bold=True)
    for dot in dots:
        sheet.dot(*dot, style.BLUE, radius=4)
    for row, op in enumerate(operations):
        line = _TOP + _HEIGHT + 52 + 17 * row
        sheet.write(_LEFT + 6, line, str(row + 1), align="center", bold=True)
        sheet.write(_LEFT + 20, line, op.name)
        sheet.write(_LEFT + 120, line, f"{_short(op.flop_per_byte)} FLOP/byte")
        rate = _rate(op.attainable_flop_per_s)
        sheet.write(WIDTH_PT - 20, line, f"at most {rate}", align="right")


def _beside(dots: Sequence[Point]) -> list[Point]:
    """A place for the number of each dot: below or beside it, from left to right as the dots are.

    Numbers of dots on one place fan out, so that each can be read; a line leads to its dot.
    """
    order = sorted(range(len(dots)), key=lambda one: (dots[one], one))
    across: list[float] = []
    for one in order:
        low = dots[one][1] > _TOP + _HEIGHT - 32  # no room below: to the right
        across.append(max(dots[one][0] + (18 if low else 6), across[-1] + _NUMBER if across else 0))
    right = _LEFT + _WIDTH - 6
    for back in range(len(across)):  # those that are too far right move to the left
        across[-1 - back] = min(across[-1 - back], right - _NUMBER * back)
    down = [min(dots[one][1] + 28, _TOP + _HEIGHT - 4) for one in order]
    found = dict(zip(order, zip(across, down, strict=True), strict=True))
    return [found[one] for one in range(len(dots))]


def _rate(flop_per_s: float) -> str:
    return f"{format_flop(flop_per_s)}/s"


def _short(value: float) -> str:
    return format_number(value)
