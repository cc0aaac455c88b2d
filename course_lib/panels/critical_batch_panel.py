"""The panel of chapter 2: what a batch size costs in steps and in samples."""

from course_lib.figures.data import accumulation as figure
from course_lib.panels.controls import powers_of_two
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.units import format_number
from course_lib.theory.step.batching import batch_cost


def critical_batch(batch: int = 64, critical: int = 1024) -> Panel:
    """Sliders for `batch_cost`, whose `BatchCost` is the panel's result.

    Raises ValueError for starting values outside the sliders.
    """
    controls = {
        "batch": powers_of_two("batch", batch, 8, 16384),
        "critical": powers_of_two("critical batch", critical, 64, 4096),
    }
    return Panel(controls, _view)


def _view(batch: int, critical: int) -> View:
    cost = batch_cost(batch, critical)
    rows = (
        (
            "steps, times the fewest",
            f"1 + critical batch {critical} / batch {batch} = {format_number(cost.steps, 4)}",
        ),
        (
            "samples, times the fewest",
            f"1 + batch {batch} / critical batch {critical} = {format_number(cost.samples, 4)}",
        ),
    )
    return View(cost, rows, lambda: figure.batch_cost(cost, critical, batch))
