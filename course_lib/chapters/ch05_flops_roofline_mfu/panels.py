"""Panels of chapter 5, beside those of the library."""

from course_lib.chapters.ch05_flops_roofline_mfu import figures
from course_lib.chapters.ch05_flops_roofline_mfu.roofline import model_roofline
from course_lib.figures.paper.drawing import counted
from course_lib.panels.controls import choice, powers_of_two
from course_lib.panels.offers import DENSE
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.hardware import ACCELERATORS, Accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import format_flop, format_number


def roofline(
    model: str = "llama2-7b",
    gpu: str = "H100-SXM",
    tokens: int = 64,
    machine: Accelerator | None = None,
) -> Panel:
    """Controls for `model_roofline`, whose `Roofline` is the panel's result.

    `machine`: a chip of your own, offered and chosen first. Raises ValueError for starting values
    that are not offered.
    """
    chips = {machine.name: machine, **ACCELERATORS} if machine else ACCELERATORS
    controls = {
        "model": choice("model", model, DENSE),
        "gpu": choice("chip", machine.name if machine else gpu, list(chips)),
        "tokens": powers_of_two("tokens", tokens, 1, 65536),
    }
    return Panel(controls, lambda **values: _view(chips, **values))


def _view(chips: dict[str, Accelerator], model: str, gpu: str, tokens: int) -> View:
    result = model_roofline(MODELS[model], chips[gpu], tokens)
    rows = (
        ("model", f"{model}, {result.accelerator.number_format}"),
        ("ridge of the chip", f"{result.accelerator.ridge_flop_per_byte:.1f} FLOP/byte"),
        ("forward pass", f"{format_flop(result.flop)} for {counted(tokens, 'token')}"),
        (
            "at least",
            f"{format_number(1000 * result.seconds)} ms: {result.peak_fraction:.1%} of the peak",
        ),
    )
    return View(result, rows, lambda: figures.on_roofline(result, f"{model} on {gpu}"))
