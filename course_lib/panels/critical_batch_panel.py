"""The panel of chapter 2: what a batch size costs in steps and in samples."""

from course_lib.figures.data import accumulation as figure
from course_lib.panels.controls import powers_of_two
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.units import format_number
from course_lib.theory.step.batching import batch_cost


@panel
def critical_batch(
    batch: int = powers_of_two("batch", 64, 8, 16384),
    critical: int = powers_of_two("critical batch", 1024, 64, 4096),
) -> View:
    """Sliders for `batch_cost`, whose `BatchCost` is the panel's result.

    Raises ValueError for starting values outside the sliders.
    """
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
