"""Panels of chapter 9, in addition to the library's."""

from course_lib.chapters.ch09_fsdp import figures
from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.figures.paper.drawing import counted
from course_lib.panels.controls import DENSE, choice, flag, powers_of_two
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes

_GATHERING = {"FSDP, layer by layer": "fsdp", "YaFSDP, two buffers": "yafsdp"}


@panel
def fsdp_memory(
    model: str = choice("model", "llama2-7b", DENSE),
    gathering: str = choice("gathering", "fsdp", _GATHERING),
    ranks: int = powers_of_two("ranks", 64, 2, 4096),
    reshard: bool = flag("reshard", True),
    prefetch: bool = flag("prefetch", True),
) -> View:
    """Controls for `gather_timeline`; its `GatherTimeline` is the panel's result.

    bf16 with an fp32 master copy, AdamW. YaFSDP always prefetches and alternates its buffers, so
    `reshard` and `prefetch` change nothing there. Raises ValueError for starting values that are
    not offered.
    """
    recipe = Recipe(gathering=gathering)
    result = gather_timeline(MODELS[model], recipe, ranks, reshard=reshard, prefetch=prefetch)
    rows = (
        ("convention", f"{model}, bf16 with fp32 master copy: 16 bytes per parameter"),
        ("peak without activations", format_bytes(result.peak_bytes)),
        ("collectives of a step", f"{result.all_gathers} all-gathers, {result.reduce_scatters} "
         "reduce-scatters"),
        ("memory taken or given back", f"{result.changes} times"),
    )  # fmt: skip
    name = "YaFSDP" if gathering == "yafsdp" else "FSDP"
    title = f"{name}, {model}, {counted(ranks, 'GPU')}"
    return View(result, rows, lambda: figures.gather_memory(result, title))
