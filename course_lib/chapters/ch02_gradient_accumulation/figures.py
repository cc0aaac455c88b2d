"""Figures of chapter 2, in addition to those of the library."""

from collections.abc import Iterator, Mapping

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.lines import Curve, graph, powers
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted, elide
from course_lib.theory.inputs.units import format_number
from course_lib.theory.step.batching import BatchCost, Batching
from course_lib.theory.step.batching import batch_cost as cost_of
from course_lib.trace import Event

_MICRO_STEPS = 6
_CHOSEN_PT, _OTHER_PT = 34.0, 13.0  # heights of the two timelines
# Lengths in units of one forward pass: backward is about twice as much work. The all-reduce is
# drawn as long as a forward pass; its real time depends on the machine.
_LENGTHS = {"forward": 1.0, "backward": 2.0, "all-reduce": 1.0, "update": 0.5, "idle": 1.0}


def window(plan: Batching, all_reduces: Mapping[bool, int], no_sync: bool) -> Drawing:
    """Draw the timeline of one update, without and with no_sync; the chosen one is higher.

    `all_reduces` maps whether no_sync is used to the number of backward passes that all-reduce.
    """
    blocks = []
    for with_no_sync, syncs in all_reduces.items():
        noun = "backward pass all-reduces" if syncs == 1 else "backward passes all-reduce"
        chosen = with_no_sync == no_sync
        name = f"{'with' if with_no_sync else 'without'} no_sync: {syncs} {noun}"
        name += " (chosen)" * chosen
        row = {"one update": list(_works(plan.accumulation, with_no_sync))}
        high = _CHOSEN_PT if chosen else _OTHER_PT
        blocks.append(Lanes(row, name=name, high=high, foot=False, sentence=name))
    heading = (
        f"One update on {counted(plan.dp, 'rank')}: "
        f"{plan.accumulation} × {counted(plan.micro_batch, 'sample')} each, "
        f"{plan.global_batch:,} in all"
    )
    key = [word for word in _LENGTHS if word != "idle"]
    return page(heading, *blocks, key=key, notes=["lengths: not to scale"])


def _works(accumulation: int, no_sync: bool) -> Iterator[Event]:
    """Yield the work of one update in order; long windows keep the first and last micro-steps."""
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


def batch_cost(cost: BatchCost, critical_batch: float, batch: float) -> Drawing:
    """Plot samples against optimizer steps, relative to their minima, and mark the chosen batch.

    `cost` is the cost of `batch`; the curve is `theory.step.batching.batch_cost` of all batches.
    """
    # From 999·Bc to Bc/999, evenly spaced on the logarithmic axes.
    all_batches = [cost_of(999 ** (part / 20), 1.0) for part in range(20, -21, -1)]
    steps, samples = format_number(cost.steps), format_number(cost.samples)
    curves = {
        "all batches": Curve([(point.steps, point.samples) for point in all_batches], style.BLUE),
        f"critical batch {critical_batch:,}": Curve([], style.WHITE, "2× both", dots=[(2.0, 2.0)]),
        f"batch {batch:,}": Curve(
            [], style.INK, f"{steps}× the steps, {samples}× the samples",
            dots=[(cost.steps, cost.samples)],
        ),
    }  # fmt: skip
    across, up = (
        powers([1, 1000], "{:,.0f}×".format, f"times the fewest {what}")
        for what in ("optimizer steps", "samples")
    )
    return graph(curves, "What a fixed loss costs", across, up).drawing
