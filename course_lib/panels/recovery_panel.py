"""The panel of chapter 15: how often to save, and what failures cost all the same."""

from dataclasses import replace

from course_lib.figures.cluster import saving as figure
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import choice, powers_of_two, whole
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes, format_duration
from course_lib.theory.step.recovery import (
    Saving,
    checkpoint_bytes,
    machine_mtbf_s,
    young_interval_s,
)

_DAY_S = 86_400


def recovery(
    model: str = "llama3-405b",
    gpus: int = 16_384,
    gpu_days: int = 2112,
    storage_gb_per_s: int = 81,
    restart_min: int = 10,
    interval_min: int = 60,
) -> Panel:
    """Controls for `Saving`, which is the panel's result.

    They start with Llama 3 405B: 16,384 GPUs × 54 days / 419 failures = 2112 days for one GPU.
    Raises ValueError for starting values outside the sliders.
    """
    controls = {
        "model": choice("model", model, list(MODELS)),
        "gpus": powers_of_two("GPUs", gpus, 8, 131_072),
        "gpu_days": whole("MTBF of a GPU", gpu_days, 100, 10_000, "days"),
        "storage_gb_per_s": whole("storage", storage_gb_per_s, 1, 2000, "GB/s"),
        "restart_min": whole("restart", restart_min, 0, 120, "min"),
        "interval_min": whole("interval", interval_min, 1, 240, "min"),
    }
    return Panel(controls, _view)


def _view(
    model: str,
    gpus: int,
    gpu_days: int,
    storage_gb_per_s: int,
    restart_min: int,
    interval_min: int,
) -> View:
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
    return View(plan, rows, lambda: figure.wasted_time(plan, title))
