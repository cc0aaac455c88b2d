"""Panels of chapter 8, in addition to those of the library."""

from dataclasses import replace

from course_lib.chapters.ch08_zero import figures
from course_lib.figures.paper.drawing import counted
from course_lib.panels.controls import GPU_MEMORY_BYTES, choice, flag, powers_of_two
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.hardware import PCIE4
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.inputs.units import format_bytes, format_count, format_number
from course_lib.theory.network.zero import STAGES, zero_stages

# The example of ZeRO's figure 1 (arXiv:1910.02054), and the course's models.
_PARAMETERS = {"zero-7.5b": 7_500_000_000} | {
    name: shape.parameters().total for name, shape in MODELS.items()
}
_MODELS = {f"{name} ({format_count(count)})": name for name, count in _PARAMETERS.items()}
_CONVENTIONS = {
    f"{name}: {recipe.bytes_per_parameter} B per parameter": name
    for name, recipe in RECIPES.items()
}


@panel
def zero(
    model: str = choice("model", "zero-7.5b", _MODELS),
    convention: str = choice("convention", "mixed-16", _CONVENTIONS),
    gpu: str = choice("GPU", "A100, H100 80 GB", list(GPU_MEMORY_BYTES)),
    stage: int = choice("stage", 2, STAGES),
    ranks: int = powers_of_two("ranks", 64, 1, 1024),
    offload: bool = flag("offload the optimizer", False),
) -> View:
    """Controls for `zero_stages`; the chosen stage's `StageBill` is the result.

    Raises ValueError for starting values that are not offered.
    """
    recipe = replace(RECIPES[convention], offload="optimizer" if offload else "none")
    result = zero_stages(_PARAMETERS[model], ranks, recipe)
    title = f"{model} on {counted(ranks, 'GPU')}, {recipe.bytes_per_parameter} bytes per parameter"
    bill = result.bills[stage]
    rows = [
        ("GPU", gpu),
        ("one GPU stores", format_bytes(bill.total_bytes)),
        ("all GPUs store", format_bytes(bill.total_bytes * result.ranks)),
        ("one GPU sends", f"{format_bytes(bill.sent_bytes)} in an update with one micro-batch"),
    ]
    if bill.host_bytes:
        seconds = format_number(bill.bus_seconds())
        bus = f"{format_bytes(bill.bus_bytes)}, {seconds} s by {PCIE4.name}"
        rows += [("host, for one GPU", format_bytes(bill.host_bytes)), ("over the bus", bus)]
    room = GPU_MEMORY_BYTES[gpu]
    return View(bill, tuple(rows), lambda: figures.who_stores_what(result, stage, room, title))
