"""Figures of chapter 11, beside those of the library."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.trace import Event

_WIDE = 0.7  # of a layer's box, from layer to layer


def layer_paths(devices: Mapping[str, Sequence[int]]) -> Drawing:
    """{"interleaved": [0, 1, 0, 1]}: the device of each layer; rows for each arrangement.

    Arrows are messages forward: where two layers that follow each other lie on two devices.
    """
    blocks = [_rows(name, places) for name, places in devices.items()]
    return page(
        "", *blocks, notes=["in a box: the number of the layer; an arrow: a message forward"]
    )


def _rows(name: str, places: Sequence[int]) -> Lanes:
    ways = [
        ((f"device {a}", layer + _WIDE), (f"device {b}", layer + 1.0), "messages")
        for layer, (a, b) in enumerate(pairwise(places))
        if a != b
    ]
    rows = {
        f"device {device}": [
            Event(layer, device, "weights", end=layer + _WIDE, label=str(layer))
            for layer, place in enumerate(places)
            if place == device
        ]
        for device in range(1 + max(places))
    }
    said = f"{name}: {counted(len(ways), 'message')} forward"
    return Lanes(rows, name=said, over=(0, len(places)), arrows=ways, foot=False, sentence=said)
