"""The stepper of chapter 8: who holds what while one training step passes."""

from course_lib import figures
from course_lib.panels.controls import choice, whole
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.zero_steps import ZeroMoment, ZeroSteps, zero_steps

LAYERS, LAYER_PARAMETERS = 3, 600_000_000  # a multiple of every number of ranks


def zero(stage: int = 2, ranks: int = 4) -> Stepper:
    """One training step of three layers; what is shown is a `ZeroMoment`.

    Raises ValueError for starting values outside the sliders.
    """
    controls = {
        "stage": choice("stage", stage, (0, 1, 2, 3)),
        "ranks": whole("ranks", ranks, 2, 6),
    }
    return Stepper(controls, _story)


def _story(stage: int, ranks: int) -> Story:
    result = zero_steps(LAYER_PARAMETERS, LAYERS, ranks, stage)
    return Story(len(result.moments), lambda step: _view(result, step))


def _view(result: ZeroSteps, step: int) -> View:
    moment = result.moments[step]
    most = max(each.total_bytes for each in result.moments[: step + 1])
    rows = (
        ("most held so far", format_bytes(most)),
        ("sent so far", f"{format_bytes(moment.sent_bytes)} by each rank"),
    )
    said = _said(result, moment)
    return View(moment, rows, lambda: figures.zero_step(result, step), said)


def _said(result: ZeroSteps, moment: ZeroMoment) -> str:
    stage, layer = result.stage, f"layer {(moment.layer or 0) + 1}"
    if moment.what == "begin":
        some = "all weights and its part of the optimizer"
        kept = ("everything", some, some, "its part of everything")
        return f"In stage {stage} each rank keeps {kept[stage]}. No gradients yet."
    if moment.what == "forward":
        return f"Each rank computes {layer} on its own samples, with whole weights."
    if moment.what == "backward":
        return f"Each rank has the gradient of {layer} from its own samples."
    if moment.what == "gather":
        return f"Every rank gets all parts of {layer}: whole weights, for a moment (yellow)."
    if moment.what == "free":
        return f"The output of {layer} is there: each rank throws away what is not its own part."
    if moment.what == "publish":
        return f"Every rank gets the new weights of {layer} from their owners."
    if moment.what == "update":
        if not stage:
            return "Every rank makes the same update of everything; the gradients may go."
        return "Each rank updates its own part only; the gradients may go."
    if not stage:
        return f"Every rank gets the whole sum of the gradients of {layer}."
    freed = "the rest and the whole weights go" if stage == 3 else "the rest is thrown away"
    return f"Each rank gets its own part of {layer}'s summed gradient; {freed}."
