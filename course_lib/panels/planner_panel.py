"""The panel of chapter 13: the fastest meshes for a model on a cluster."""

from functools import lru_cache

from course_lib.figures import plans as figure
from course_lib.panels.controls import choice, powers_of_two
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import ACCELERATORS
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.planner import Plan, plan

# A redraw takes 80 to 120 ms of one core, most of it the search, which is longer than other panels
# take. Hence few micro-batches and chunks, one cp, and no mixtures of experts, whose experts would
# multiply the layouts.
_FEW = {"micro_batch": (1, 2, 4, 8), "virtual_stages": (1, 2, 4)}
_RECOMPUTE = {"planner's choice": ("none", "full"), "none": ("none",), "full": ("full",)}
_ZERO = {"planner's choice": (0, 1, 2, 3), "0": (0,), "1": (1,), "2": (2,), "3": (3,)}


def planner(
    model: str = "llama2-70b",
    gpu: str = "H100-SXM",
    nodes: int = 16,
    batch: int = 512,
    sequence: int = 4096,
    recompute: str = "planner's choice",
    zero_stage: str = "planner's choice",
    cp: int = 1,
) -> Panel:
    """Controls for `theory.planner.plan`, whose `Plan` is the panel's result.

    Nodes have 8 GPUs. Raises ValueError for starting values that are not offered or for which there
    is no layout.
    """
    networked = [name for name, chip in ACCELERATORS.items() if chip.between]
    # Learned positions end at 1024 or 2048 tokens, and most of the sequences would be refused.
    models = [n for n, shape in MODELS.items() if not (shape.experts or shape.learned_positions)]
    controls = {
        "model": choice("model", model, models),
        "gpu": choice("GPU", gpu, networked),
        "recompute": choice("recompute", recompute, list(_RECOMPUTE)),
        "zero_stage": choice("ZeRO stage", zero_stage, list(_ZERO)),
        "nodes": powers_of_two("nodes of 8", nodes, 1, 2048),
        "batch": powers_of_two("global batch", batch, 8, 16384),
        "sequence": powers_of_two("sequence", sequence, 512, 131072),
        "cp": powers_of_two("cp", cp, 1, 16),
    }
    return Panel(controls, _view)


@lru_cache(maxsize=8)
def _plan(
    model: str,
    gpu: str,
    nodes: int,
    batch: int,
    sequence: int,
    recompute: str,
    zero_stage: str,
    cp: int,
) -> Plan:
    """The same Plan for the same question, so that two views of it are equal."""
    only = {**_FEW, "cp": (cp,), "zero_stage": _ZERO[zero_stage]}
    only["recompute"] = _RECOMPUTE[recompute]
    cluster = Cluster(ACCELERATORS[gpu], nodes)
    return plan(MODELS[model], Recipe(), cluster, batch, sequence=sequence, only=only)


def _view(
    model: str,
    gpu: str,
    recompute: str,
    zero_stage: str,
    nodes: int,
    batch: int,
    sequence: int,
    cp: int,
) -> View:
    result = _plan(model, gpu, nodes, batch, sequence, recompute, zero_stage, cp)
    title = f"{model} on {8 * nodes:,} {gpu}, {batch:,} × {sequence:,} tokens"
    rows = (("layouts that fit", f"{result.fitting:,} of {result.layouts:,}"),)
    if result.fitting:
        (best,) = result.best(1)
        step = result.step(best)
        rows += (
            ("fastest", best.explain()),
            ("its MFU", f"{step.mfu:.1%} (predicted; Llama 3's real steps took 8 to 20 % longer)"),
        )
    else:
        option, reason = next(result.rejected())
        rows += (("closest", option.explain()), ("why not", reason))
    return View(result, rows, lambda: figure.ranked_layouts(result, title))
