"""Panels of chapter 3, in addition to those of the library."""

from dataclasses import replace

from course_lib.chapters.ch03_what_is_in_the_memory import figures
from course_lib.panels.controls import GPU_MEMORY_BYTES, choice, powers_of_two
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES, RECIPES
from course_lib.theory.inputs.units import format_bytes, format_count
from course_lib.theory.memory.peak import training_memory

# Bytes per parameter with AdamW: the names of the conventions assume it.
_CONVENTIONS = {
    f"{name}: {recipe.bytes_per_parameter} B/param": name for name, recipe in RECIPES.items()
}
_MODELS = {
    f"{name} ({format_count(shape.parameters().total)})": name for name, shape in MODELS.items()
}
_UNITS = {"GB = 10⁹ bytes": "GB", "GiB = 2³⁰ bytes": "GiB"}


@panel
def memory(
    model: str = choice("model", "gpt2-1.5b", _MODELS),
    convention: str = choice("convention", "mixed-16", _CONVENTIONS),
    optimizer: str = choice("optimizer", "adamw", list(OPTIMIZER_STATE_BYTES)),
    # No "selective": it has no effect with flash attention, which all conventions use.
    recompute: str = choice("recompute", "none", ["none", "full"]),
    unit: str = choice("unit", "GB", _UNITS),
    gpu: str = choice("GPU", "RTX 4090 24 GB", list(GPU_MEMORY_BYTES)),
    micro_batch: int = powers_of_two("micro-batch", 1, 1, 64),
    sequence: int = powers_of_two("sequence", 1024, 128, 8192),
) -> View:
    """Controls for `training_memory`, whose `MemoryBreakdown` is the result.

    Raises ValueError for starting values that are not offered or that do not fit together.
    """
    recipe = replace(RECIPES[convention], optimizer=optimizer, recompute=recompute)
    breakdown = training_memory(MODELS[model], recipe, micro_batch, sequence)
    capacity = GPU_MEMORY_BYTES[gpu]
    title = f"{model}, {convention}, {optimizer}: {recipe.bytes_per_parameter} bytes per parameter"
    total = breakdown.total_bytes
    # Not in the figure: the exact total, and its share of the GPU's memory.
    rows = (
        ("total", f"{format_bytes(total, unit)} = {total:,} bytes"),
        (f"of {gpu}", f"{total / capacity:.1%}"),
    )
    return View(breakdown, rows, lambda: figures.consumers(breakdown, unit, capacity, title))
