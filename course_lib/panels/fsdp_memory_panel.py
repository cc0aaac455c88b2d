"""The panel of chapter 9: the memory of one GPU over a step of sharded data parallelism."""

from course_lib.figures.data_parallel import gathering as figure
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import choice, flag, powers_of_two
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.gather_timeline import gather_timeline

_GATHERING = {"FSDP, layer by layer": "fsdp", "YaFSDP, two buffers": "yafsdp"}


def fsdp_memory(
    model: str = "llama2-7b",
    ranks: int = 64,
    gathering: str = "fsdp",
    reshard: bool = True,
    prefetch: bool = True,
) -> Panel:
    """Controls for `gather_timeline`, whose `GatherTimeline` is the panel's result.

    bf16 with an fp32 master copy, AdamW. YaFSDP always fetches ahead and takes its buffers in
    turns: there `reshard` and `prefetch` change nothing. Raises ValueError for starting values
    that are not offered.
    """
    dense = [name for name, shape in MODELS.items() if not shape.experts]
    controls = {
        "model": choice("model", model, dense),
        "gathering": choice("gathering", gathering, _GATHERING),
        "ranks": powers_of_two("ranks", ranks, 2, 4096),
        "reshard": flag("reshard", reshard),
        "prefetch": flag("prefetch", prefetch),
    }
    return Panel(controls, _view)


def _view(model: str, gathering: str, ranks: int, reshard: bool, prefetch: bool) -> View:
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
    return View(result, rows, lambda: figure.gather_memory(result, title))
