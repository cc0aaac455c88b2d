"""Figures of chapter 8, in addition to those of the library."""

import math
from collections.abc import Mapping, Sequence

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.bars import Bar, Bars, Limit
from course_lib.figures.engines.cells import Cell, Cells, cells
from course_lib.figures.engines.lines import Axis, Curve, graph
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, Point, elide
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.zero import StageBill, ZeroStages

_PLANE = 230.0, WIDTH_PT - 76  # height and width; both axes have the same scale


def clipped(gradient: Point, limit: float, right: Point, wrong: Point) -> Drawing:
    """Draw `gradient`, its clipped versions `right` and `wrong`, and the circle of norm `limit`.

    Of each vector, rank 0 has the first component and rank 1 the second.
    """
    curves = {
        name: Curve([(0.0, 0.0), to], colour, f"({to[0]:.3g}, {to[1]:.3g})", dots=[to])
        for name, to, colour in (
            ("the gradient", gradient, style.GRADIENTS),
            ("clipped by the global norm", right, style.GREEN),
            ("clipped by own norms", wrong, style.WARNING),
        )
    }
    turns = [math.radians(90 - 3 * step) for step in range(31)]
    circle = [(limit * math.cos(turn), limit * math.sin(turn)) for turn in turns]
    curves[f"norm {limit:g}"] = Curve(circle, dashed=True)
    (high, wide), most = _PLANE, 1.1 * max(gradient)
    ticks = range(math.ceil(most))
    across = Axis(ticks, label="on rank 0", ends=(0, most * wide / high))
    up = Axis(ticks, label="on rank 1", ends=(0, most))
    return graph(curves, f"A gradient, and clipped to {limit:g}", across, up, high=high).drawing


# --- halves -------------------------------------------------------------------------------------
# The reduce-scatters and all-gathers of an update, in order.


def halves(sent: Mapping[str, Sequence[str]], title: str = "") -> Drawing:
    """Draw a box per reduce-scatter or all-gather of {"stage 1": ["gradients", "weights"], …}."""
    short = max(map(len, sent.values())) > 5
    grid = {
        f"{name}\n{len(each) / 2:g} × plain": {
            str(index): Cell(what[0].upper() if short else what, {0: what})
            for index, what in enumerate(each)
        }
        for name, each in sent.items()
    }
    note = "Each box: (n-1)/n of the model's bytes, sent by each rank."
    return cells(grid, title, heads=False, note=note, high=26)


# --- who stores what ----------------------------------------------------------------------------
# The part that each rank stores under a stage, and the bytes on one GPU.


_COLUMNS, _SLOTS, _HIGH = 8, 48, 120.0  # ranks shown; visible parts of a block; total height
_KINDS = {"weights": style.WEIGHTS, "gradients": style.GRADIENTS, "optimizer": style.STATES}


def who_stores_what(
    result: ZeroStages, stage: int, capacity_bytes: int, title: str = "", unit: str = "GB"
) -> Drawing:
    """Draw the parts that each rank stores under `stage`, and below them bytes per GPU by stage.

    Raises ValueError for another unit, IndexError for a stage that does not exist.
    """
    bill, holds = result.bills[stage], format_bytes(capacity_bytes, unit)
    rows, sums = [], []
    for each in result.bills:
        fits = each.total_bytes <= capacity_bytes
        words = f"{format_bytes(each.total_bytes, unit)}, {'fits' if fits else 'does not fit'}"
        chosen = each is bill
        name = f"► stage {each.zero_stage}" if chosen else f"stage {each.zero_stage}"
        rows.append(Bar(name, _sizes(each), words, 15, 22, chosen, chosen, warns=not fits))
        sums.append(words)
    kinds = ", ".join(
        f"{format_bytes(size, unit)} of {name}" for name, size in _sizes(bill).items()
    )
    host = f", and {format_bytes(bill.host_bytes, unit)} on the host" if bill.host_bytes else ""
    sentence = (
        f"{title}, stage {stage}: each GPU stores {kinds}{host}. Stages 0 to 3 take "
        f"{'; '.join(sums)}; this GPU holds {holds}."
    )
    limits = [Limit(f"this GPU holds {holds}", capacity_bytes)]
    looks = {name: (fill, None) for name, fill in _KINDS.items()}
    note = (
        f"Stage {stage}: what each GPU stores of the whole (filled), and what it does not (white)."
    )
    whole = _wholes(result.bills[0])
    grid, high = {}, {}  # a block's height is in proportion to its bytes
    for kind, columns in _grid(result, bill).items():
        row = kind + "\n(on the host)" * bool(kind == "optimizer" and bill.host_bytes)
        grid[row], high[row] = columns, _HIGH * whole[kind] / sum(whole.values())
    return page(
        title,
        Cells(grid, high=high, note=note, looks={"on the host": (style.STATES, "x")}),
        Bars(rows, looks, limits=limits, size=9, sentence=""),
        key=(),
        sentence=sentence,
    )


def _sizes(bill: StageBill) -> dict[str, int]:
    sizes = (bill.weights_bytes, bill.gradients_bytes, bill.optimizer_bytes)
    return dict(zip(_KINDS, sizes, strict=True))


def _wholes(bill: StageBill) -> dict[str, int]:
    return _sizes(bill) | {"optimizer": bill.optimizer_bytes + bill.host_bytes}


def _grid(result: ZeroStages, bill: StageBill) -> dict[str, dict[str, Cell]]:
    """A column per rank, a block per kind of state, filled wholly or in the rank's own part."""
    plain, slots = _wholes(result.bills[0]), min(result.ranks, _SLOTS)
    grid: dict[str, dict[str, Cell]] = {}
    for kind, size in _wholes(bill).items():
        word = "on the host" if kind == "optimizer" and bill.host_bytes else kind
        grid[kind] = {}
        for rank in elide(result.ranks, _COLUMNS):
            if rank is None:
                grid[kind]["…"] = Cell("…", slots=1)
            elif size == plain[kind]:
                grid[kind][f"GPU {rank}"] = Cell(filled={0: word})
            else:
                part = {rank * slots // result.ranks: word}
                grid[kind][f"GPU {rank}"] = Cell(filled=part, slots=slots, across=1)
    return grid
