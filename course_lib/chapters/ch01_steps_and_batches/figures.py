"""Figures of chapter 1, in addition to those of the library."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells, cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, counted, elide
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network import mesh
from course_lib.theory.step.batching import Batching

# --- From an epoch down to a sample: a ladder with one rung for each unit -------------------------

_LEFT, _RIGHT, _TOP, _BAR, _ROW = 130.0, WIDTH_PT - 112.0, 30.0, 22.0, 46.0
_SIZE = 9
_MOST_CELLS = 100  # a rung with more pieces shows only this many


class _Rung(NamedTuple):
    """One bar: its name, how many pieces, a piece's name, samples in the bar, colour, order."""

    name: str
    pieces: int
    piece: str
    samples: int
    fill: str
    how: str = "one after another"


def batch_ladder(batching: Batching) -> Drawing:
    """Draw epoch, update, micro-step and micro-batch as bars, each one piece of the bar above."""
    rungs = _rungs(batching)
    parts = [
        f"{rung.name} has {counted(rung.pieces, rung.piece)}" + f" {rung.how}" * (rung.pieces > 1)
        for rung in rungs
    ]
    parts.append(f"one update rests on {batching.global_batch:,} samples.")
    drawing = Drawing(_TOP + _ROW * len(rungs), "; ".join(parts).capitalize())
    drawing.title(f"{counted(batching.samples, 'sample')} on {counted(batching.dp, 'rank')}")
    for index, rung in enumerate(rungs):
        y = _TOP + _ROW * index
        _draw(drawing, rung, y)
        if index + 1 < len(rungs):
            width = (_RIGHT - _LEFT) / rung.pieces
            below = y + _ROW
            corners = ((_LEFT, _LEFT), (_LEFT + width, _RIGHT))
            edges = [[(a, y + _BAR), (b, below)] for a, b in corners]
            drawing.lines(edges, style.GREY, 0.8, dashed=True)
    return drawing


def _rungs(batching: Batching) -> list[_Rung]:
    micro, accumulation, dp = batching.micro_batch, batching.accumulation, batching.dp
    rungs = [
        _Rung("one epoch", batching.epoch().updates, "update", batching.samples, style.WHITE),
        _Rung("one update", accumulation, "micro-step", batching.global_batch, style.UPDATE),
        _Rung("one micro-step", dp, "micro-batch", micro * dp, style.COMPUTING, "side by side"),
        _Rung("one micro-batch", micro, "sample", micro, style.PALE, "at once"),
    ]
    if dp == 1:  # with one rank, a micro-step is one micro-batch
        del rungs[2]
    return rungs


def _draw(drawing: Drawing, rung: _Rung, y: float) -> None:
    """Draw a bar of equal pieces, with their number on the right."""
    cells = min(rung.pieces, _MOST_CELLS)
    width = (_RIGHT - _LEFT) / cells
    drawing.write(_LEFT - 8, y + 10, rung.name, size=_SIZE, align="right", bold=True)
    samples = counted(rung.samples, "sample")
    drawing.write(_LEFT - 8, y + 21, samples, size=_SIZE, align="right", colour=style.GREY)
    first = (_LEFT, y, width, _BAR)
    rest = [(_LEFT + cell * width, y, width, _BAR) for cell in range(1, cells)]
    drawing.boxes(rest, rung.fill, edge=style.GREY)
    drawing.boxes([first], rung.fill)
    drawing.write(_RIGHT + 8, y + 10, counted(rung.pieces, rung.piece), size=_SIZE)
    if rung.pieces > 1:
        drawing.write(_RIGHT + 8, y + 21, rung.how, size=_SIZE, colour=style.GREY)


# --- Which samples each rank saw ------------------------------------------------------------------

_COLUMNS, _ROWS = 16, 8


def samples_by_rank(epochs: Sequence[Sequence[Sequence[int]]]) -> Drawing:
    """Draw for each epoch a row per rank with the sample indices in the order it saw them.

    `epochs[e][r]` are the indices of rank r in epoch e. An index is in brackets if any rank has
    already seen that sample in the epoch.
    """
    blocks = []
    for number, ranks in enumerate(epochs):
        same = number > 0 and list(map(list, ranks)) == list(map(list, epochs[number - 1]))
        note = ": the same order as the epoch before" if same else ""
        blocks.append(_epoch(ranks, f"Epoch {number}{note}"))
    return page("", *blocks, key=())


def _epoch(ranks: Sequence[Sequence[int]], heading: str) -> Cells:
    """Grid of one epoch. Ranks run in parallel: all first samples count before any second one."""
    longest = max(map(len, ranks))
    seen: set[int] = set()
    rows: list[dict[int, Cell]] = [{} for _ in ranks]
    for index in range(longest):
        for rank, samples in enumerate(ranks):
            if index < len(samples):
                again = samples[index] in seen
                text = f"({samples[index]})" if again else str(samples[index])
                rows[rank][index] = Cell(text, {0: "again" if again else "computing"})
                seen.add(samples[index])
    shown = elide(longest, _COLUMNS)
    dots = Cell("…", slots=0)
    grid: dict[str, dict[str, Cell]] = {heading: {}}
    for rank_or_none in elide(len(ranks), _ROWS):
        if rank_or_none is None:
            grid["…"] = {"0": Cell(slots=0)}
            continue
        row = rows[rank_or_none]
        grid[f"rank {rank_or_none}"] = {
            "…" if index is None else str(index): dots if index is None else row[index]
            for index in shown
            if index is None or index in row
        }
    twice = sum(map(len, ranks)) - len(seen)
    each = ", ".join(
        f"rank {rank} saw {counted(len(ids), 'sample')}" for rank, ids in enumerate(ranks[:_ROWS])
    )
    more = ", …" if len(ranks) > _ROWS else ""
    said = f"{heading}: {each}{more}; {counted(twice, 'sample')} seen again"
    return Cells(grid, heads=False, gap=3, said=said)


# --- Which GPUs work on the same part of the batch ------------------------------------------------


def same_samples(plans: Mapping[str, Batching]) -> Drawing:
    """Draw a grid for each plan, a row for each node; the number in a box is the GPU's dp rank.

    Boxes of dp rank 0 are filled: these GPUs share one part of the batch.
    """
    grid: dict[str, dict[str, Cell]] = {}
    for name, plan in plans.items():
        layout = Layout(tp=plan.tp, cp=plan.cp, dp=plan.dp, pp=plan.pp)
        head = f"{name}\n{counted(plan.dp, 'part')} of the batch, {plan.global_batch:,} samples"
        for gpu in range(plan.nodes * plan.gpus_per_node):
            node, column = divmod(gpu, plan.gpus_per_node)
            part = mesh.place(layout, gpu)["dp"]
            cell = Cell(str(part), {0: "computing"} if part == 0 else {})
            grid.setdefault(f"node {node}", {})[f"{head}\n{column}"] = cell
    said = "; ".join(
        f"{name}: {counted(plan.tp * plan.pp * plan.cp, 'GPU')} for each of {plan.dp} parts of a "
        f"batch of {plan.global_batch:,} samples"
        for name, plan in plans.items()
    )
    return cells(grid, "The dp rank of each GPU", high=15.0, gap=3.0, said=said)
