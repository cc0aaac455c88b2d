"""Panels of chapter 5, in addition to those of the library."""

from course_lib.chapters.ch05_flops_roofline_mfu import figures
from course_lib.chapters.ch05_flops_roofline_mfu.roofline import model_roofline
from course_lib.figures.paper.drawing import counted
from course_lib.panels.controls import DENSE, choice, powers_of_two
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.hardware import ACCELERATORS
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import format_flop, format_number


@panel
def roofline(
    model: str = choice("model", "llama2-7b", DENSE),
    gpu: str = choice("chip", "H100-SXM", list(ACCELERATORS)),
    tokens: int = powers_of_two("tokens", 64, 1, 65536),
) -> View:
    """Controls for `model_roofline`, whose `Roofline` is the panel's result.

    Raises ValueError for starting values that are not offered.
    """
    result = model_roofline(MODELS[model], ACCELERATORS[gpu], tokens)
    least = f"{format_number(1000 * result.seconds)} ms"
    rows = (
        ("model", f"{model}, {result.accelerator.number_format}"),
        ("ridge of the chip", f"{result.accelerator.ridge_flop_per_byte:.1f} FLOP/byte"),
        ("forward pass", f"{format_flop(result.flop)} for {counted(tokens, 'token')}"),
        ("at least", f"{least}: {result.peak_fraction:.1%} of the peak"),
    )
    return View(result, rows, lambda: figures.on_roofline(result, f"{model} on {gpu}"))
