"""The panel of chapter 3: what is in the memory of one GPU."""

from dataclasses import replace

from course_lib.figures.memory import memory as figure
from course_lib.panels.controls import choice, powers_of_two
from course_lib.panels.gpu_sizes import GPU_MEMORY_BYTES
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES, RECIPES
from course_lib.theory.inputs.units import format_bytes, format_count
from course_lib.theory.memory.breakdown import MemoryBreakdown
from course_lib.theory.memory.peak import training_memory


def memory(
    model: str = "gpt2-1.5b",
    convention: str = "mixed-16",
    optimizer: str = "adamw",
    micro_batch: int = 1,
    sequence: int = 1024,
    recompute: str = "none",
    unit: str = "GB",
    gpu: str = "RTX 4090 24 GB",
) -> Panel:
    """Controls for `training_memory`, whose `MemoryBreakdown` is the result.

    Raises ValueError for starting values that are not offered or that do not fit together.
    """
    # Bytes with AdamW, which is what the names of the conventions mean.
    conventions = {
        f"{name}: {recipe.bytes_per_parameter} B/param": name for name, recipe in RECIPES.items()
    }
    units = {"GB = 10⁹ bytes": "GB", "GiB = 2³⁰ bytes": "GiB"}
    controls = {
        "model": choice("model", model, _models()),
        "convention": choice("convention", convention, conventions),
        "optimizer": choice("optimizer", optimizer, list(OPTIMIZER_STATE_BYTES)),
        # Without "selective": all conventions use flash attention, which leaves it nothing to do.
        "recompute": choice("recompute", recompute, ["none", "full"]),
        "unit": choice("unit", unit, units),
        "gpu": choice("GPU", gpu, list(GPU_MEMORY_BYTES)),
        "micro_batch": powers_of_two("micro-batch", micro_batch, 1, 64),
        "sequence": powers_of_two("sequence", sequence, 128, 8192),
    }
    return Panel(controls, _view)


def _models() -> dict[str, str]:
    return {
        f"{name} ({format_count(shape.parameters().total)})": name for name, shape in MODELS.items()
    }


def _view(
    model: str,
    convention: str,
    optimizer: str,
    recompute: str,
    unit: str,
    gpu: str,
    micro_batch: int,
    sequence: int,
) -> View:
    recipe = replace(RECIPES[convention], optimizer=optimizer, recompute=recompute)
    breakdown = training_memory(MODELS[model], recipe, micro_batch, sequence)
    capacity = GPU_MEMORY_BYTES[gpu]
    title = f"{model}, {convention}, {optimizer}: {recipe.bytes_per_parameter} bytes per parameter"
    return View(
        breakdown,
        _rows(breakdown, gpu, unit),
        lambda: figure.consumers(breakdown, unit, capacity, title),
    )


def _rows(breakdown: MemoryBreakdown, gpu: str, unit: str) -> tuple[tuple[str, str], ...]:
    """What the figure does not say: the exact total, and which part of it a GPU gives."""
    total = breakdown.total_bytes
    return (
        ("total", f"{format_bytes(total, unit)} = {total:,} bytes"),
        (f"of {gpu}", f"{total / GPU_MEMORY_BYTES[gpu]:.1%}"),
    )
