"""Which device holds which layer, and a micro-batch's way through them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted


def layer_paths(devices: Mapping[str, Sequence[int]]) -> Drawing:
    """{"interleaved": [0, 1, 0, 1]}: the device of each layer; a grid for each arrangement.

    Arrows are messages forward: where two layers that follow each other lie on two devices.
    Raises ValueError for an arrangement without layers.
    """
    if not devices or not all(devices.values()):
        raise ValueError('devices must hold arrangements of layers: give {"in turn": [0, 1]}')
    return page("", *[_grid(name, places) for name, places in devices.items()])


def _grid(name: str, places: Sequence[int]) -> Cells:
    ways = [
        ((f"device {a}", f"layer {layer}"), (f"device {b}", f"layer {layer + 1}"))
        for layer, (a, b) in enumerate(pairwise(places))
        if a != b
    ]
    grid: dict[str, dict[str, Cell]] = {f"{name}: {counted(len(ways), 'message')} forward": {}}
    grid |= {
        f"device {device}": {
            f"layer {layer}": Cell(filled={0: "weights"})
            for layer, place in enumerate(places)
            if place == device
        }
        for device in range(1 + max(places))
    }
    return Cells(dict(grid), arrows=ways, high=13.0)
