"""Panels of chapter 15."""

from dataclasses import replace

from course_lib.chapters.ch15_launchers_and_recovery import figures
from course_lib.chapters.ch15_launchers_and_recovery.recovery import (
    Saving,
    checkpoint_bytes,
    machine_mtbf_s,
    young_interval_s,
)
from course_lib.figures.paper.drawing import counted
from course_lib.panels.controls import choice, powers_of_two, whole
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes, format_duration

_DAY_S = 86_400


@panel
def recovery(
    model: str = choice("model", "llama3-405b", list(MODELS)),
    gpus: int = powers_of_two("GPUs", 16_384, 8, 131_072),
    gpu_days: int = whole("MTBF of a GPU", 2112, 100, 10_000, "days"),
    storage_gb_per_s: int = whole("storage", 81, 1, 2000, "GB/s"),
    restart_min: int = whole("restart", 10, 0, 120, "min"),
    interval_min: int = whole("interval", 60, 1, 240, "min"),
) -> View:
    """Panel of the checkpoint interval; its result is a `Saving`.

    The defaults are Llama 3 405B: 16,384 GPUs × 54 days / 419 failures = 2112 days for one GPU.
    Raises ValueError for starting values outside the sliders.
    """
    size = checkpoint_bytes(MODELS[model].parameters().total, Recipe())
    save_s = size / (storage_gb_per_s * 1e9)
    mtbf_s = machine_mtbf_s(gpu_days * _DAY_S, gpus)
    plan = Saving(60 * interval_min, save_s, mtbf_s, 60 * restart_min)
    best = replace(plan, interval_s=plan.best_interval_s)
    many = counted(gpus, "GPU")
    rows = (
        ("a failure every", f"{gpu_days:,} days / {many} = {format_duration(mtbf_s)}"),
        ("one save", f"{format_bytes(size)} of {model} in {format_duration(save_s)}"),
        ("best interval, Young", format_duration(young_interval_s(save_s, mtbf_s))),
        ("best interval, Daly", format_duration(plan.best_interval_s)),
        ("new work, by the clock", f"{plan.progress:.1%}; at best {best.progress:.1%}"),
    )
    title = f"{model} on {many}"
    return View(plan, rows, lambda: figures.wasted_time(plan, title))
