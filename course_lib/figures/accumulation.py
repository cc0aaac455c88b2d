"""When gradients travel during an accumulated update, and what a batch size costs."""

import math

from course_lib.figures import style
from course_lib.figures.batches import elide
from course_lib.figures.sheet import WIDTH_PT, Sheet
from course_lib.theory.batching import Batching, batch_cost
from course_lib.theory.communication import gradient_syncs
from course_lib.theory.units import format_count

_LEFT = 4
_BAR = 22
_MICRO_STEPS = 6
# Widths in units of one forward pass: backward is about twice as much work, the all-reduce is
# drawn as long as a forward; real times depend on the machine.
_FORWARD, _BACKWARD, _ALL_REDUCE, _UPDATE = 1.0, 2.0, 1.0, 0.5


def window(micro_batch: int, accumulation: int, dp: int, no_sync: bool) -> Sheet:
    """The timeline of one update, without and with no_sync; the chosen one in full colour.

    Raises ValueError for counts below 1.
    """
    batching = Batching(10**9, micro_batch, accumulation, gpus_per_node=dp)
    syncs = {way: gradient_syncs(accumulation, accumulation, way) for way in (False, True)}
    sheet = Sheet(208, _window_sentence(batching, no_sync, syncs[no_sync]))
    sheet.write(
        0,
        13,
        f"One update on each of {dp} rank{'' if dp == 1 else 's'}: "
        f"{accumulation} × {micro_batch} samples, {batching.global_batch:,} in all",
        size=style.TITLE_PT,
        bold=True,
    )
    for top, way in ((34, False), (100, True)):
        _timeline(sheet, top, accumulation, way, syncs[way], chosen=way == no_sync)
    _key(sheet, 180)
    return sheet


def _window_sentence(batching: Batching, no_sync: bool, syncs: int) -> str:
    with_it = "with" if no_sync else "without"
    return (
        f"One update of {batching.global_batch} samples: {batching.accumulation} micro-steps of "
        f"{batching.micro_batch} samples on each of {batching.dp} ranks; {with_it} no_sync the "
        f"gradients are all-reduced in {syncs} of {batching.accumulation} backward passes."
    )


def _timeline(
    sheet: Sheet, top: float, accumulation: int, no_sync: bool, syncs: int, chosen: bool
) -> None:
    name = "with no_sync" if no_sync else "without no_sync"
    noun = "backward pass all-reduces" if syncs == 1 else "backward passes all-reduce"
    title = f"{name}: {syncs} {noun}" + (" (chosen)" if chosen else "")
    sheet.write(0, top + 10, title, bold=chosen, colour=style.INK if chosen else style.GREY)
    blocks = _blocks(accumulation, no_sync)
    looks = {
        "forward": (style.SKY, None),
        "backward": (style.GREEN, None),
        "all-reduce": (style.ORANGE, "///"),
        "update": (style.INK, None),
    }
    # One scale for both rows, so that a shorter row is a shorter time.
    scale = (WIDTH_PT - _LEFT - 4) / sum(width for _, width in _blocks(accumulation, False))
    x, boxes = float(_LEFT), {name: [] for name in looks}
    for kind, width in blocks:
        if kind == "…":
            sheet.write(x + width * scale / 2, top + 33, "…", align="center")
        else:
            boxes[kind].append((x, top + 17, width * scale, _BAR))
        x += width * scale
    for kind, (fill, hatch) in looks.items():
        pale = not chosen and kind != "update"
        sheet.boxes(boxes[kind], style.PALE if pale else fill, hatch,
                    edge=style.INK if chosen else style.GREY)  # fmt: skip


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
    entries = (
        (style.SKY, None, "forward"),
        (style.GREEN, None, "backward"),
        (style.ORANGE, "///", "all-reduce"),
        (style.INK, None, "update"),
    )
    for place, (fill, hatch, name) in enumerate(entries):
        x = _LEFT + place * 88
        sheet.boxes([(x, top, 14, 14)], fill, hatch)
        sheet.write(x + 19, top + 11, name)
    sheet.write(WIDTH_PT - 4, top + 11, "lengths: not to scale", align="right", colour=style.GREY)


_PLOT = (84.0, 40.0, 400.0, 190.0)  # left, top, width, height of the curve's frame
_DECADES = 2  # both axes run from 1 to 100


def batch_cost_curve(critical_batch: float, batch: float) -> Sheet:
    """Optimizer steps against samples, both relative to their minimum, with the chosen batch.

    The curve is S/S_min = 1 + Bc/B, E/E_min = 1 + B/Bc (McCandlish et al. 2018,
    arXiv:1812.06162). Raises ValueError for a batch that is not above 0.
    """
    cost = batch_cost(batch, critical_batch)
    sheet = Sheet(
        270,
        f"Batch {batch:,} with a critical batch of {critical_batch:,}: "
        f"{cost.steps:.3g} times the fewest possible steps and "
        f"{cost.samples:.3g} times the fewest possible samples.",
    )
    _frame(sheet)
    # Batches from Bc/99 to 99·Bc, evenly spaced on the logarithmic axes.
    curve = [batch_cost(99 ** (part / 20), 1.0) for part in range(-20, 21)]
    sheet.line([_place(point.steps, point.samples) for point in curve], style.BLUE, 2)
    x, y = _place(2, 2)
    sheet.dot(x, y, style.WHITE, 4)
    sheet.write(x + 10, y + 18, f"critical batch {critical_batch:,}", colour=style.GREY)
    _chosen_batch(sheet, batch, cost.steps, cost.samples)
    return sheet
