"""Panels of chapter 13, in addition to the library's."""

from course_lib.figures import plans as figure
from course_lib.panels.controls import choice, powers_of_two
from course_lib.panels.panel import Rows, View, panel
from course_lib.theory.inputs.hardware import ACCELERATORS, Cluster
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.planner import Plan, PlannedLayout, fastest, plan, sturdy
from course_lib.theory.step.assumptions import CAUTIOUS

# A redraw takes longer than in other panels, mostly for the search. So it covers few stages,
# micro-batches and chunks and one cp; and fewer tp, pp and ep for a mixture of experts, where each
# has separate states and messages. The fastest layout of Llama 2 7B and 70B and Llama 3 405B on 1
# to 1024 nodes is at most 2 % slower for that, mostly the same. The milliseconds are in
# benchmarks/README.md.
_FEW = {"micro_batch": (1, 2, 4, 8), "virtual_stages": (1, 2, 4), "pp": (1, 2, 8, 16)}
_FEWER = _FEW | {"tp": (1, 4), "pp": (1, 4, 16), "ep": (1, 8, 64), "virtual_stages": (1, 2)}
_RECOMPUTE = {"planner's choice": ("none", "full"), "none": ("none",), "full": ("full",)}
_ZERO = {"planner's choice": (0, 1, 2, 3), "0": (0,), "1": (1,), "2": (2,), "3": (3,)}
_NETWORKED = [name for name, chip in ACCELERATORS.items() if chip.between]
# Learned positions end at 1024 or 2048 tokens: most sequence lengths would be refused.
_MODELS = [name for name, shape in MODELS.items() if not shape.learned_positions]


@panel
def planner(
    model: str = choice("model", "llama2-70b", _MODELS),
    gpu: str = choice("GPU", "H100-SXM", _NETWORKED),
    recompute: str = choice("recompute", "planner's choice", list(_RECOMPUTE)),
    zero_stage: str = choice("ZeRO stage", "planner's choice", list(_ZERO)),
    nodes: int = powers_of_two("nodes of 8", 16, 1, 2048),
    batch: int = powers_of_two("global batch", 512, 8, 16384),
    sequence: int = powers_of_two("sequence", 4096, 512, 131072),
    cp: int = powers_of_two("context parallel", 1, 1, 16),
) -> View:
    """Controls for `plan`; its `Plan` is the panel's result. Hatched ends lead to cautious times.

    Nodes have 8 GPUs. Raises ValueError for starting values that are not offered or for which there
    is no layout.
    """
    cluster = Cluster(ACCELERATORS[gpu], nodes)
    degrees = _FEWER if MODELS[model].experts else _FEW
    only: dict[str, tuple[int | str, ...]] = {**degrees, "cp": (cp,)}
    only |= {"zero_stage": _ZERO[zero_stage], "recompute": _RECOMPUTE[recompute]}
    result = plan(MODELS[model], Recipe(), cluster, batch, sequence=sequence, only=only)
    careful = result.under(CAUTIOUS)
    title = f"{model} on {8 * nodes:,} {gpu}, {batch:,} × {sequence:,} tokens"
    rows: Rows
    if result.fitting:
        (best,), (sturdiest,) = fastest([result, careful], 1), sturdy([result, careful], 1)
        first, second = map(result.mfu, best.steps_s)
        mfu = f"MFU {first:.1%}, under cautious assumptions {second:.1%}"
        regret = f"at worst {sturdiest.regret:.1%} behind the best"
        rows = (
            ("fastest", f"{_layout_line(result, best.option)}; {mfu}"),
            ("sturdiest", f"{_layout_line(result, sturdiest.option)}; {regret}"),
        )
    else:
        option, reason = next(result.rejected())
        rows = (("closest", _layout_line(result, option)), ("why not", reason))
    return View(result, rows, lambda: figure.ranked_layouts(result, title, careful=careful))


def _layout_line(result: Plan, option: PlannedLayout) -> str:
    """One line: a layout, its memory and its step time."""
    size = format_bytes(option.memory_bytes, digits=1)
    return f"{figure.layout_words(result, option)}: {size}, {format_number(option.step_s, 4)} s"
