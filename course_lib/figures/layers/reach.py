"""FLOP per byte of a layer against the number of GPUs that share it, and what the link needs."""

import math

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import format_number
from course_lib.theory.network import collectives
from course_lib.theory.network.tensor_parallel import CutLayer

_LEFT, _TOP, _WIDTH, _HEIGHT = 62.0, 44.0, 440.0, 176.0
_DECADES = range(1, 6)  # FLOP per byte from 10 to 10^5
_DEGREES = (2, 4, 8, 16, 32, 64)


def tp_reach(layer: CutLayer, title: str = "") -> Sheet:
    """The curves of a layer and of one matrix, and the ridge; both axes are logarithmic."""
    sheet = Sheet(_TOP + _HEIGHT + 92, sentence(layer))
    sheet.title(title or f"hidden {layer.hidden}")
    sheet.write(0, 30, "FLOP per byte sent (both axes logarithmic)", colour=style.GREY)
    _axes(sheet)
    _limits(sheet, layer)
    steps = [2 ** (1 + 5 * step / 40) for step in range(41)]
    intensity = 9 * layer.hidden / layer.element_bytes
    notes = [(t, collectives.matrix_intensity(layer.hidden, t, layer.element_bytes)) for t in steps]
    _curve(sheet, notes, style.GREEN, dashed=True)
    _curve(sheet, [(t, intensity / (t - 1)) for t in steps], style.BLUE)
    if layer.tp > 1:
        sheet.dot(*_place(layer.tp, layer.flop_per_byte), style.BLUE)
    _legend(sheet, layer)
    return sheet


def sentence(layer: CutLayer) -> str:
    """Intensity, ridge, both limits and the two times, in words."""
    longer = "computing" if layer.compute_s >= layer.communication_s else "communicating"
    return (
        f"Hidden {layer.hidden}, tp {layer.tp} on {layer.link.name}: {layer.flop_per_byte:,.0f} "
        f"FLOP per byte, the ridge is {layer.ridge_flop_per_byte:,.0f}; tp reaches "
        f"{layer.layer_reach} by the layer formula, {format_number(layer.matrix_reach)} by the "
        f"notes; {longer} takes longer, {_ms(layer.compute_s)} against "
        f"{_ms(layer.communication_s)}."
    )


def _place(degree: float, intensity: float) -> tuple[float, float]:
    """Where a degree and an intensity lie; what is outside the frame lies on its edge."""
    across = (math.log2(degree) - 1) / 5
    down = (_DECADES[-1] - math.log10(intensity)) / (len(_DECADES) - 1)
    return _LEFT + min(max(across, 0), 1) * _WIDTH, _TOP + min(max(down, 0), 1) * _HEIGHT


def _axes(sheet: Sheet) -> None:
    bottom = _TOP + _HEIGHT
    for decade in _DECADES:
        _, y = _place(2, 10**decade)
        sheet.line([(_LEFT, y), (_LEFT + _WIDTH, y)], style.PALE)
        sheet.write(_LEFT - 6, y + 4, f"{10**decade:,}", align="right", colour=style.GREY, size=9)
    for degree in _DEGREES:
        x, _ = _place(degree, 10)
        sheet.line([(x, _TOP), (x, bottom)], style.PALE)
        sheet.write(x, bottom + 14, str(degree), align="center", colour=style.GREY, size=9)
    sheet.line([(_LEFT, _TOP), (_LEFT, bottom), (_LEFT + _WIDTH, bottom)])
    sheet.write(_LEFT + _WIDTH / 2, bottom + 30, "GPUs that share each matrix, t", align="center")


def _limits(sheet: Sheet, layer: CutLayer) -> None:
    """The ridge, and how far the layer's curve stays above it."""
    left, right = (_place(degree, layer.ridge_flop_per_byte) for degree in (2, 64))
    sheet.line([left, right], width=2)
    text = f"ridge {layer.ridge_flop_per_byte:,.0f}"
    sheet.write(right[0], right[1] - 5, text, align="right")
    crossing = 1 + 9 * layer.hidden / layer.element_bytes / layer.ridge_flop_per_byte
    if 2 <= crossing <= 64:
        x, y = _place(crossing, layer.ridge_flop_per_byte)
        sheet.line([(x, y), (x, _TOP + _HEIGHT)], style.GREY, dashed=True)


def _curve(
    sheet: Sheet, points: list[tuple[float, float]], colour: str, dashed: bool = False
) -> None:
    inside = [point for point in points if 10 <= point[1] <= 10 ** _DECADES[-1]]
    if len(inside) > 1:
        sheet.line([_place(*point) for point in inside], colour, width=2, dashed=dashed)


def _legend(sheet: Sheet, layer: CutLayer) -> None:
    line = _TOP + _HEIGHT + 52
    rows = (
        (style.BLUE, False, "a layer's FLOP / bytes, 4.5 h/(t-1) in 16 bits", layer.layer_reach),
        (
            style.GREEN,
            True,
            "the notes: one matrix, 3 h/t",
            format_number(layer.matrix_reach),
        ),
    )
    for row, (colour, dashed, what, reach) in enumerate(rows):
        y = line + 18 * row
        sheet.line([(_LEFT, y - 4), (_LEFT + 26, y - 4)], colour, width=2, dashed=dashed)
        sheet.write(_LEFT + 34, y, what)
        sheet.write(_LEFT + _WIDTH, y, f"above the ridge up to t = {reach}", align="right")


def _ms(seconds: float) -> str:
    return f"{format_number(1000 * seconds)} ms"
