"""Figures of chapter 11, in addition to the library's."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.trace import Event

_WIDE = 0.7  # width of a layer's box, in distances between two layers


def layer_paths(devices: Mapping[str, Sequence[int]]) -> Drawing:
    """Draw a block of rows for each arrangement, {"interleaved": [0, 1, 0, 1]}: device by layer.

    Arrows are forward messages, between consecutive layers on different devices.
    """
    blocks = [_rows(name, owners) for name, owners in devices.items()]
    return page(
        "", *blocks, notes=["in a box: the number of the layer; an arrow: a message forward"]
    )


def _rows(name: str, owners: Sequence[int]) -> Lanes:
    hops = [
        ((f"device {a}", layer + _WIDE), (f"device {b}", layer + 1.0), "messages")
        for layer, (a, b) in enumerate(pairwise(owners))
        if a != b
    ]
    rows = {
        f"device {device}": [
            Event(layer, device, "weights", end=layer + _WIDE, label=str(layer))
            for layer, owner in enumerate(owners)
            if owner == device
        ]
        for device in range(1 + max(owners))
    }
    said = f"{name}: {counted(len(hops), 'message')} forward"
    return Lanes(rows, name=said, over=(0, len(owners)), arrows=hops, foot=False, sentence=said)
