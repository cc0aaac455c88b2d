"""The stepper of chapter 4: a layer forward and backward, and what is held meanwhile."""

from course_lib import figures
from course_lib.panels.controls import choice
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.layer_walk import LayerWalk, SavedTensor, layer_walk

_RECOMPUTE = {"nothing": "none", "attention": "selective", "the whole layer": "full"}


def layer(recompute: str = "none", attention: str = "standard") -> Stepper:
    """The story of `layer_walk` for a layer of GPT-3, one sequence of 2048 tokens.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "recompute": choice("recompute", recompute, _RECOMPUTE),
        "attention": choice("attention", attention, ["standard", "flash"]),
    }
    return Stepper(controls, _story)


def _story(recompute: str, attention: str) -> Story:
    recipe = Recipe(recompute=recompute, attention=attention, dropout=True)
    walk = layer_walk(Job(MODELS["gpt3-175b"], recipe, sequence=2048))
    return Story(len(walk.moments), lambda step: _view(walk, step))


def _view(walk: LayerWalk, step: int) -> View:
    moment = walk.moments[step]
    rows = (
        ("held now", format_bytes(moment.held_bytes)),
        ("held while the other layers run", format_bytes(walk.kept_bytes)),
    )
    title = "one layer of GPT-3, 2048 tokens, 16 bits"
    return View(moment, rows, lambda: figures.layer_step(walk, step, title), _caption(walk, step))


def _caption(walk: LayerWalk, step: int) -> str:
    moment = walk.moments[step]
    name = moment.operation
    if moment.going == "before":
        return "The layer has not begun, and nothing is held."
    if moment.going == "forward":
        kept = _names(moment.stored)
        what = f"backward will need {kept}" if kept else "nothing is kept for backward"
        return f"Forward, {name}: {what}."
    if moment.going == "again":
        kept = _names(moment.stored)
        what = f", and now it keeps {kept}" if kept else ", and nothing new is kept"
        return f"{name[0].upper()}{name[1:]} once more{what}."
    gone = _names(moment.freed)
    what = f"it uses and frees {gone}" if gone else "it needs nothing that was kept"
    return f"Backward, {name}: {what}."


def _names(tensors: tuple[SavedTensor, ...]) -> str:
    """All their names and the bytes of all; nothing for none."""
    size = format_bytes(sum(one.size_bytes for one in tensors))
    return f"{', '.join(one.name for one in tensors)} ({size})" if tensors else ""
