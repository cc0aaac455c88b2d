"""When gradients travel during an accumulated update, and what a batch size costs."""

import math
from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted, elide
from course_lib.theory.inputs.units import format_number
from course_lib.theory.step.batching import BatchCost, Batching
from course_lib.theory.step.batching import batch_cost as cost_of

_LEFT = 4
_BAR = 22
_MICRO_STEPS = 6
# Widths in units of one forward pass: backward is about twice as much work, the all-reduce is
# drawn as long as a forward; real times depend on the machine.
_FORWARD, _BACKWARD, _ALL_REDUCE, _UPDATE = 1.0, 2.0, 1.0, 0.5
_LOOKS = {
    "forward": style.FORWARD,
    "backward": style.BACKWARD,
    "all-reduce": style.MESSAGES,
    "update": style.UPDATE,
}


def window(plan: Batching, all_reduces: Mapping[bool, int], no_sync: bool) -> Sheet:
    """The timeline of one update, without and with no_sync; the chosen one in full colour.

    `all_reduces` has the backward passes that all-reduce, by whether no_sync is used.
    """
    sheet = Sheet(208, _window_sentence(plan, no_sync, all_reduces[no_sync]))
    sheet.write(
        0,
        13,
        f"One update on {counted(plan.dp, 'rank')}: "
        f"{plan.accumulation} × {plan.micro_batch} samples each, {plan.global_batch:,} in all",
        size=style.TITLE_PT,
        bold=True,
    )
    for top, way in ((34, False), (100, True)):
        _timeline(sheet, top, plan.accumulation, way, all_reduces[way], chosen=way == no_sync)
    _key(sheet, 180)
    return sheet


def _window_sentence(plan: Batching, no_sync: bool, syncs: int) -> str:
    with_it = "with" if no_sync else "without"
    return (
        f"One update of {counted(plan.global_batch, 'sample')}: "
        f"{counted(plan.accumulation, 'micro-step')} of {counted(plan.micro_batch, 'sample')} "
        f"on {counted(plan.dp, 'rank')}; {with_it} no_sync the gradients are all-reduced "
        f"{syncs} of {plan.accumulation} times."
    )


def _timeline(
    sheet: Sheet, top: float, accumulation: int, no_sync: bool, syncs: int, chosen: bool
) -> None:
    name = "with no_sync" if no_sync else "without no_sync"
    noun = "backward pass all-reduces" if syncs == 1 else "backward passes all-reduce"
    title = f"{name}: {syncs} {noun}" + (" (chosen)" if chosen else "")
    sheet.write(0, top + 10, title, bold=chosen, colour=style.INK if chosen else style.GREY)
    blocks = _blocks(accumulation, no_sync)
    # One scale for both rows, so that a shorter row is a shorter time.
    scale = (WIDTH_PT - _LEFT - 4) / sum(width for _, width in _blocks(accumulation, False))
    x = float(_LEFT)
    boxes: dict[str, list[Box]] = {name: [] for name in _LOOKS}
    for kind, width in blocks:
        if kind == "…":
            sheet.write(x + width * scale / 2, top + 33, "…", align="center")
        else:
            boxes[kind].append((x, top + 17, width * scale, _BAR))
        x += width * scale
    for kind, fill in _LOOKS.items():
        edge = style.INK if chosen else style.GREY
        sheet.boxes(boxes[kind], fill if chosen else style.PALE, edge=edge)


def _blocks(accumulation: int, no_sync: bool) -> list[tuple[str, float]]:
    """The kinds of work of one update in order, with their widths."""
    blocks: list[tuple[str, float]] = []
    for step in elide(accumulation, _MICRO_STEPS):
        if step is None:
            blocks.append(("…", _FORWARD))
            continue
        blocks += [("forward", _FORWARD), ("backward", _BACKWARD)]
        if not no_sync or step == accumulation - 1:
            blocks.append(("all-reduce", _ALL_REDUCE))
    return [*blocks, ("update", _UPDATE)]


def _key(sheet: Sheet, top: float) -> None:
    for place, (name, fill) in enumerate(_LOOKS.items()):
        x = _LEFT + place * 88
        sheet.boxes([(x, top, 14, 14)], fill)
        sheet.write(x + 19, top + 11, name)
    sheet.write(WIDTH_PT - 4, top + 11, "lengths: not to scale", align="right", colour=style.GREY)


_PLOT = (84.0, 30.0, 330.0, 190.0)  # left, top, width, height of the curve's frame
_LEAST, _DECADES = 0.7, 3  # both axes run from a little under 1 to 10^3


def batch_cost(cost: BatchCost, critical_batch: float, batch: float) -> Sheet:
    """Optimizer steps against samples, both relative to their minimum, with the chosen batch.

    `cost` is that of `batch`; the curve is `theory.step.batching.batch_cost` of all batches.
    """
    sheet = Sheet(
        270,
        f"Batch {batch:,} with a critical batch of {critical_batch:,}: "
        f"{format_number(cost.steps)} times the fewest possible steps and "
        f"{format_number(cost.samples)} times the fewest possible samples.",
    )
    sheet.title("What a fixed loss costs")
    _frame(sheet)
    # Batches from Bc/999 to 999·Bc, evenly spaced on the logarithmic axes.
    curve = [cost_of(999 ** (part / 20), 1.0) for part in range(-20, 21)]
    sheet.line([_place(point.steps, point.samples) for point in curve], style.GREY, 2)
    x, y = _place(2, 2)
    sheet.dot(x, y, style.WHITE, 4)
    sheet.write(x + 8, y - 6, f"critical batch {critical_batch:,}", colour=style.GREY)
    _chosen_batch(sheet, batch, cost)
    return sheet


def _place(steps: float, samples: float) -> tuple[float, float]:
    """Where a cost lies in the frame; what is beyond its edge is drawn on the edge."""
    left, top, width, height = _PLOT
    across, up = (
        min(math.log10(value / _LEAST) / math.log10(10**_DECADES / _LEAST), 1)
        for value in (steps, samples)
    )
    return left + across * width, top + (1 - up) * height


def _frame(sheet: Sheet) -> None:
    left, top, width, height = _PLOT
    for decade in range(_DECADES + 1):
        x, y = _place(10**decade, 10**decade)
        sheet.line([(left, y), (left + width, y)], style.PALE)
        sheet.line([(x, top), (x, top + height)], style.PALE)
        sheet.write(left - 6, y + 4, f"{10**decade:,}×", align="right", colour=style.GREY)
        sheet.write(x, top + height + 15, f"{10**decade:,}×", align="center", colour=style.GREY)
    sheet.line([(left, top), (left, top + height), (left + width, top + height)])
    sheet.write(
        left + width / 2, top + height + 33, "times the fewest optimizer steps", align="center"
    )
    for row, word in enumerate(("times the", "fewest", "samples")):
        sheet.write(0, top + height / 2 + row * 13, word)


def _chosen_batch(sheet: Sheet, batch: float, cost: BatchCost) -> None:
    left, top, width, height = _PLOT
    x, y = _place(cost.steps, cost.samples)
    sheet.line([(left, y), (x, y), (x, top + height)], style.INK, 1.2, dashed=True)
    sheet.dot(x, y, style.INK)
    for row, text in enumerate(
        (
            f"batch {batch:,}",
            f"{format_number(cost.steps)}× the steps",
            f"{format_number(cost.samples)}× the samples",
        )
    ):
        sheet.write(left + width - 110, top + 20 + row * 15, text, bold=row == 0)
