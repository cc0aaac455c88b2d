"""What the meters of several devices say: one row each, one bar for each meter."""

from collections.abc import Mapping

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_number

_SLOTS = 100  # of a bar


def meters(
    readings: Mapping[str, Mapping[str, float | None]],
    full: Mapping[str, float],
    title: str = "",
) -> Drawing:
    """{"GPU 0": {"busy, %": 100, "power, W": 655}}; `full`: where the bar of each meter ends.

    None: the device does not tell.
    """
    names = {name: f"{name} (of {format_number(most, 6)})" for name, most in full.items()}
    grid = {
        device: {names[name]: _bar(own[name], most) for name, most in full.items()}
        for device, own in readings.items()
    }
    said = (
        f"{device}: {', '.join(f'{name} {cell.text}' for name, cell in its.items())}"
        for device, its in grid.items()
    )
    return page(title, Cells(grid, gap=14, high=11, below=True, said="; ".join(said)))


def _bar(value: float | None, most: float) -> Cell:
    filled = dict.fromkeys(range(round(_SLOTS * (value or 0) / most)), "computing")
    told = "not told" if value is None else format_number(value, 6)
    return Cell(told, filled, _SLOTS)
