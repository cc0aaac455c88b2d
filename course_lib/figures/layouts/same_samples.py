"""Which GPUs work on the same samples: those that share one copy of the model."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network.mesh import place
from course_lib.theory.step.batching import Batching

_TOP, _HEAD, _MOST = 22.0, 22.0, 128


def same_samples(plans: Mapping[str, Batching]) -> Drawing:
    """One grid beside the other, a row for each node; the number in a box is its dp rank.

    Boxes of dp rank 0 are filled: these GPUs work on one part of the batch. Ranks stand in
    `mesh.ORDER`. Raises ValueError for
    no plan, more than two, or more than 128 GPUs.
    """
    worlds = [plan.nodes * plan.gpus_per_node for plan in plans.values()]
    if not 0 < len(plans) <= 2 or max(worlds) > _MOST:
        raise ValueError(f"plans {list(plans)}: give one or two, of at most {_MOST} GPUs")
    width = (WIDTH_PT - 24) / len(plans)
    wide = min(27.0, width / max(plan.gpus_per_node for plan in plans.values()))
    high = min(20.0, 190 / max(plan.nodes for plan in plans.values()))
    height = _TOP + _HEAD + high * max(plan.nodes for plan in plans.values())
    drawing = Drawing(height + 18, _sentence(plans))
    for column, (name, plan) in enumerate(plans.items()):
        _grid(drawing, name, plan, (column * (width + 24), wide, high))
    return drawing


def _grid(drawing: Drawing, name: str, plan: Batching, sizes: tuple[float, float, float]) -> None:
    left, wide, high = sizes
    drawing.write(left, 13, name, size=style.TITLE_PT, bold=True)
    copies = f"{counted(plan.dp, 'part')} of the batch, {plan.global_batch:,} samples"
    drawing.write(left, 30, copies, size=9, colour=style.GREY)
    layout = Layout(tp=plan.tp, cp=plan.cp, dp=plan.dp, pp=plan.pp)
    mine: list[Box] = []
    others: list[Box] = []
    texts: dict[bool, list[tuple[float, float, str]]] = {True: [], False: []}
    for gpu in range(plan.nodes * plan.gpus_per_node):
        row, column = divmod(gpu, plan.gpus_per_node)
        box = (left + column * wide, _TOP + _HEAD + row * high, wide - 2, high - 2)
        part = place(layout, gpu)["dp"]
        (others if part else mine).append(box)
        middle = (box[0] + box[2] / 2, box[1] + box[3] / 2 + 2.7, str(part))
        texts[part == 0].append(middle)
    drawing.boxes(mine, style.COMPUTING)
    drawing.boxes(others, style.WHITE, edge=style.GREY)
    for first, written in texts.items():
        fill = style.COMPUTING if first else style.WHITE
        if written and high >= 11:
            drawing.write_all(written, size=7.5, align="center", colour=style.on(fill))


def _sentence(plans: Mapping[str, Batching]) -> str:
    parts = [
        f"{name}: {counted(plan.tp * plan.pp * plan.cp, 'GPU')} for each of {plan.dp} parts of a "
        f"batch of {plan.global_batch:,} samples"
        for name, plan in plans.items()
    ]
    return "; ".join(parts) + "."
