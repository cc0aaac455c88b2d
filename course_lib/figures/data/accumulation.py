"""When gradients travel during an accumulated update, and what a batch size costs."""

import math
from collections.abc import Iterator, Mapping

from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted, elide
from course_lib.theory.inputs.units import format_number
from course_lib.theory.step.batching import BatchCost, Batching
from course_lib.theory.step.batching import batch_cost as cost_of
from course_lib.trace import Event

_MICRO_STEPS = 6
# Lengths in units of one forward pass: backward is about twice as much work, the all-reduce is
# drawn as long as a forward; real times depend on the machine.
_LENGTHS = {"forward": 1.0, "backward": 2.0, "all-reduce": 1.0, "update": 0.5, "idle": 1.0}


def window(plan: Batching, all_reduces: Mapping[bool, int], no_sync: bool) -> Drawing:
    """The timeline of one update, without and with no_sync.

    `all_reduces` has the backward passes that all-reduce, by whether no_sync is used.
    """
    rows = {}
    for way, syncs in all_reduces.items():
        noun = "backward pass all-reduces" if syncs == 1 else "backward passes all-reduce"
        chosen = " (chosen)" * (way == no_sync)
        rows[f"{'with' if way else 'without'} no_sync: {syncs} {noun}{chosen}"] = {
            "one update": list(_works(plan.accumulation, way))
        }
    heading = (
        f"One update on {counted(plan.dp, 'rank')}: "
        f"{plan.accumulation} × {plan.micro_batch} samples each, {plan.global_batch:,} in all"
    )
    blocks = [
        Lanes(row, name=name, high=26, foot=False, sentence=name) for name, row in rows.items()
    ]
    key = [word for word in _LENGTHS if word != "idle"]
    return page(heading, *blocks, key=key, notes=["lengths: not to scale"])


def _works(accumulation: int, no_sync: bool) -> Iterator[Event]:
    """The work of one update in order; of many micro-steps the first ones and the last."""
    words: list[str] = []
    for step in elide(accumulation, _MICRO_STEPS):
        if step is None:
            words.append("idle")
            continue
        words += ["forward", "backward"]
        words += ["all-reduce"] * (not no_sync or step == accumulation - 1)
    now = 0.0
    for word in [*words, "update"]:
        yield Event(now, 0, word, end=now + _LENGTHS[word], label="…" * (word == "idle"))
        now += _LENGTHS[word]


_PLOT = (84.0, 30.0, 330.0, 190.0)  # left, top, width, height of the curve's frame
_LEAST, _DECADES = 0.7, 3  # both axes run from a little under 1 to 10^3


def batch_cost(cost: BatchCost, critical_batch: float, batch: float) -> Drawing:
    """Optimizer steps against samples, both relative to their minimum, with the chosen batch.

    `cost` is that of `batch`; the curve is `theory.step.batching.batch_cost` of all batches.
    """
    drawing = Drawing(
        270,
        f"Batch {batch:,} with a critical batch of {critical_batch:,}: "
        f"{format_number(cost.steps)} times the fewest possible steps and "
        f"{format_number(cost.samples)} times the fewest possible samples.",
    )
    drawing.title("What a fixed loss costs")
    _frame(drawing)
    # Batches from Bc/999 to 999·Bc, evenly spaced on the logarithmic axes.
    curve = [cost_of(999 ** (part / 20), 1.0) for part in range(-20, 21)]
    drawing.line([_place(point.steps, point.samples) for point in curve], style.GREY, 2)
    x, y = _place(2, 2)
    drawing.dot(x, y, style.WHITE, 4)
    drawing.write(x + 8, y - 6, f"critical batch {critical_batch:,}", colour=style.GREY)
    _chosen_batch(drawing, batch, cost)
    return drawing


def _place(steps: float, samples: float) -> tuple[float, float]:
    """Where a cost lies in the frame; what is beyond its edge is drawn on the edge."""
    left, top, width, height = _PLOT
    across, up = (
        min(math.log10(value / _LEAST) / math.log10(10**_DECADES / _LEAST), 1)
        for value in (steps, samples)
    )
    return left + across * width, top + (1 - up) * height


def _frame(drawing: Drawing) -> None:
    left, top, width, height = _PLOT
    for decade in range(_DECADES + 1):
        x, y = _place(10**decade, 10**decade)
        drawing.line([(left, y), (left + width, y)], style.PALE)
        drawing.line([(x, top), (x, top + height)], style.PALE)
        drawing.write(left - 6, y + 4, f"{10**decade:,}×", align="right", colour=style.GREY)
        drawing.write(x, top + height + 15, f"{10**decade:,}×", align="center", colour=style.GREY)
    drawing.line([(left, top), (left, top + height), (left + width, top + height)])
    drawing.write(
        left + width / 2, top + height + 33, "times the fewest optimizer steps", align="center"
    )
    for row, word in enumerate(("times the", "fewest", "samples")):
        drawing.write(0, top + height / 2 + row * 13, word)


def _chosen_batch(drawing: Drawing, batch: float, cost: BatchCost) -> None:
    left, top, width, height = _PLOT
    x, y = _place(cost.steps, cost.samples)
    drawing.line([(left, y), (x, y), (x, top + height)], style.INK, 1.2, dashed=True)
    drawing.dot(x, y, style.INK)
    for row, text in enumerate(
        (
            f"batch {batch:,}",
            f"{format_number(cost.steps)}× the steps",
            f"{format_number(cost.samples)}× the samples",
        )
    ):
        drawing.write(left + width - 110, top + 20 + row * 15, text, bold=row == 0)
