"""The stepper of chapter 9: the units of FSDP on two lanes."""

from dataclasses import replace

from course_lib import figures
from course_lib.panels.controls import flag, whole
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.hardware import NDR, accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes, format_duration
from course_lib.theory.memory.unit_life import UnitLife, UnitMoment, unit_life
from course_lib.theory.network.unit_costs import unit_costs

# 8192 tokens on each of 8 H100 that reach 45 % of their peak, each with a network port of its own.
_RANKS, _TOKENS, _REACHED = 8, 8192, 0.45


def fsdp(layers: int = 4, prefetch: int = 1, reshard: bool = True) -> Stepper:
    """Layers of LLaMA-2 7B on 8 GPUs, moment by moment.

    Raises ValueError for starting values outside the sliders.
    """
    controls = {
        "layers": whole("layers", layers, 2, 6),
        "prefetch": whole("prefetch", prefetch, 0, 2, "ahead"),
        "reshard": flag("reshard after forward", reshard),
    }
    return Stepper(controls, _story)


def _story(layers: int, prefetch: int, reshard: bool) -> Story:
    shape = replace(MODELS["llama2-7b"], layers=layers)
    rate = _REACHED * accelerator("H100-SXM").peak_flop_per_s
    units = unit_costs(shape, Recipe(), _RANKS, NDR, tokens=_TOKENS, flop_per_s=rate)
    result = unit_life(units, prefetch=prefetch, reshard=reshard)
    moments = result.moments
    return Story(len(moments), lambda step: _view(result, moments[step], step))


def _view(result: UnitLife, moment: UnitMoment, step: int) -> View:
    rows = (
        ("whole weights and gradients now", format_bytes(moment.whole_bytes)),
        ("in the whole step", f"{format_duration(result.total_s)}; for "
         f"{format_duration(result.waiting_s)} of it nothing computes"),
        ("messages", f"{result.gathers} all-gathers, {result.reductions} reduce-scatters"),
    )  # fmt: skip
    caption = _caption(result, moment)
    return View(moment, rows, lambda: figures.unit_life_step(result, step), caption)


_DOES = {
    "forward": "{} goes forward",
    "backward": "{} goes backward",
    "gather": "{} is being gathered",
    "reduce": "{}'s gradients are reduced",
}


def _caption(result: UnitLife, moment: UnitMoment) -> str:
    """What is under way, and what has just been freed."""
    parts = [_DOES[task.what].format(_name(task.unit)) for task in moment.running]
    if moment.freed:
        names = " and ".join(f"{_name(unit)}'s" for unit in moment.freed)
        parts.append(f"{names} whole weights are freed")
    elif not any(task.lane == "computing" for task in moment.running) and parts:
        parts.append("nothing computes")
    if moment.at_s == result.total_s:
        parts = ["every unit is a shard again, and each rank has its part of every gradient"]
    return _sentence("; ".join(parts))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _name(unit: int) -> str:
    return f"layer {unit}" if unit else "the root"
