"""Which device holds which layer, and a micro-batch's way through them."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted

_LEFT, _TOP, _ROW, _BOX = 52.0, 40.0, 24.0, 17.0
_BETWEEN, _GAP, _WIDEST = 18.0, 8.0, 30.0  # between panels, between layers; a column
_MOST_PANELS, _MOST_LAYERS = 3, 12


def layer_paths(devices: Mapping[str, Sequence[int]]) -> Drawing:
    """{"interleaved": [0, 1, 0, 1]}: the device of each layer; a panel for each arrangement.

    Arrows are messages forward: where two layers that follow each other lie on two devices.
    Raises ValueError without a panel, for more than three, or for more than 12 layers in one.
    """
    layers = max(map(len, devices.values()), default=0)
    if not 0 < len(devices) <= _MOST_PANELS or not 0 < layers <= _MOST_LAYERS:
        raise ValueError(
            f"{len(devices)} arrangements of up to {layers} layers: give 1 to {_MOST_PANELS}, "
            f"of 1 to {_MOST_LAYERS}"
        )
    rows = 1 + max(device for places in devices.values() for device in places)
    hops = {name: _hops(places) for name, places in devices.items()}
    words = "; ".join(f"{name}: {counted(len(hops[name]), 'message')}" for name in devices)
    drawing = Drawing(_TOP + _ROW * rows + 16, f"From layer 0 to layer {layers - 1}: {words}.")
    panel = (WIDTH_PT - _LEFT - _BETWEEN * (len(devices) - 1)) / len(devices)
    column = min(_WIDEST, panel / layers)
    for row in range(rows):
        drawing.write(_LEFT - 6, _TOP + row * _ROW + 12, f"device {row}", 9, "right")
    drawing.write(_LEFT - 6, _TOP + rows * _ROW + 10, "layer", 9, "right", style.GREY)
    for place, (name, its) in enumerate(devices.items()):
        left = _LEFT + place * (panel + _BETWEEN)
        _panel(drawing, left, column, rows, its)
        drawing.write(left, 13, name, style.TITLE_PT, bold=True)
        drawing.write(left, 28, f"{counted(len(hops[name]), 'message')} forward", 9)
    return drawing


def _hops(places: Sequence[int]) -> list[int]:
    """The layers whose output goes to another device."""
    return [layer for layer in range(len(places) - 1) if places[layer] != places[layer + 1]]


def _panel(drawing: Drawing, left: float, column: float, rows: int, places: Sequence[int]) -> None:
    width, bottom = column - _GAP, _TOP + rows * _ROW
    for row in range(rows):
        y = _TOP + row * _ROW + _BOX / 2
        drawing.line([(left, y), (left + column * len(places) - _GAP, y)], style.PALE)
    boxes = [
        (left + layer * column, _TOP + device * _ROW, width, _BOX)
        for layer, device in enumerate(places)
    ]
    drawing.boxes(boxes, style.WEIGHTS)
    for layer, (x, _, _, _) in enumerate(boxes):
        drawing.write(x + width / 2, bottom + 10, str(layer), 9, "center", style.GREY)
    for layer in _hops(places):
        (x, y, *_), (after, then, *_) = boxes[layer], boxes[layer + 1]
        middle = x + width + _GAP / 2
        start, end = y + _BOX / 2, then + _BOX / 2
        drawing.line([(x + width, start), (middle, start), (middle, end)], style.MESSAGES, 1.5)
        arrow(drawing, (middle, end), (after, end), style.MESSAGES, 1.5)
