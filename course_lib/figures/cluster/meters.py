"""What the meters of several devices say: one row each, one bar for each meter."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.theory.inputs.units import format_number

_LEFT, _TOP, _ROW, _GAP, _WORDS = 64.0, 44.0, 28.0, 12.0, 52.0


def meters(
    readings: Mapping[str, Mapping[str, float | None]],
    full: Mapping[str, float],
    title: str = "",
) -> Drawing:
    """{"GPU 0": {"busy, %": 100, "power, W": 655}}; `full`: where the bar of each meter ends.

    None: the device does not tell. Raises ValueError without devices or meters, and for a reading
    outside of 0 to its full value.
    """
    if not readings or not full:
        raise ValueError("readings and full must name at least one device and one meter")
    for device, own in readings.items():
        for name, most in full.items():
            if not 0 <= (own[name] or 0) <= most:
                raise ValueError(
                    f"{device} has {name} {own[name]}: give 0 to {most}, or a larger full"
                )
    drawing = Drawing(_TOP + _ROW * len(readings) + 4, _sentence(readings, full))
    drawing.title(title)
    step = (WIDTH_PT - _LEFT) / len(full)
    longest = step - _GAP - _WORDS
    for column, (name, most) in enumerate(full.items()):
        left = _LEFT + column * step
        drawing.write(left, _TOP - 8, f"{name} (of {format_number(most, 6)})", colour=style.GREY)
        for row, own in enumerate(readings.values()):
            y, value = _TOP + row * _ROW, own[name]
            length = longest * (value or 0) / most
            drawing.boxes([(left, y + 3, longest, 16)], style.WHITE, edge=style.GREY)
            if length:
                drawing.boxes([(left, y + 3, length, 16)], style.COMPUTING)
            drawing.write(left + longest + 5, y + 15, _told(value))
    for row, device in enumerate(readings):
        drawing.write(_LEFT - 8, _TOP + row * _ROW + 15, device, align="right")
    return drawing


def _told(value: float | None) -> str:
    return "not told" if value is None else format_number(value, 6)


def _sentence(readings: Mapping[str, Mapping[str, float | None]], full: Mapping[str, float]) -> str:
    parts = []
    for device, own in readings.items():
        told = ", ".join(
            f"{name} {_told(own[name])} of {format_number(most, 6)}" for name, most in full.items()
        )
        parts.append(f"{device}: {told}")
    return "; ".join(parts) + "."
