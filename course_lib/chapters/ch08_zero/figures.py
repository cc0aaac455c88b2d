"""Figures of chapter 8, beside those of the library."""

import math
from collections.abc import Mapping, Sequence

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.bars import Bar, Bars, Limit
from course_lib.figures.engines.cells import Cell, Cells, cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, Point, arrow_lines, elide
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.zero import StageBill, ZeroStages

_SIDE, _BOTTOM = 180.0, 230.0


def clipped(gradient: Point, limit: float, right: Point, wrong: Point) -> Drawing:
    """Left: `gradient` as it is. Right, enlarged: what is left of it, with the circle of `limit`.

    Rank 0 has the first number of each, rank 1 the second.
    """
    planes = {
        40.0: {"as it is": (gradient, style.GRADIENTS)},
        270.0: {"global norm": (right, style.GREEN), "own norms": (wrong, style.WARNING)},
    }
    told = [f"{name}: {_told(to)}" for its in planes.values() for name, (to, _) in its.items()]
    drawing = Drawing(_BOTTOM + 30, f"Clipping to {limit:g}. {'; '.join(told)}.")
    drawing.title(f"A gradient, and clipped to the norm {limit:g}")
    for left, its in planes.items():
        corners = [(left, _BOTTOM - _SIDE), (left, _BOTTOM), (left + _SIDE, _BOTTOM)]
        drawing.line(corners, style.GREY)
        drawing.write(left + _SIDE, _BOTTOM + 26, "on rank 0", 9, "right", style.GREY)
        drawing.write(left - 4, _BOTTOM - _SIDE - 6, "on rank 1", 9, colour=style.GREY)
        scale = _SIDE / 1.1 / max(max(to) for to, _ in its.values())
        for name, (to, colour) in its.items():
            x, y = left + to[0] * scale, _BOTTOM - to[1] * scale
            drawing.lines(arrow_lines((left, _BOTTOM), (x, y)), colour, 2.5)
            beside = (x - 14, "right") if to == right else (x + 8, "left")
            for row, words in enumerate((name, _told(to))):
                drawing.write(beside[0], y + 2 + 12 * row, words, 9, beside[1])
    turns = [math.radians(3 * step) for step in range(31)]
    radius = limit * scale
    arc = [(left + radius * math.cos(turn), _BOTTOM - radius * math.sin(turn)) for turn in turns]
    drawing.line(arc, style.INK, dashed=True)
    drawing.write(left + radius, _BOTTOM + 13, f"{limit:g}", 9, "center")
    return drawing


def _told(to: Point) -> str:
    return f"({to[0]:.3g}, {to[1]:.3g})"


# --- halves -------------------------------------------------------------------------------------
# Reduce-scatters and all-gathers of an update, one after the other.


def halves(sent: Mapping[str, Sequence[str]], title: str = "") -> Drawing:
    """{"stage 1": ["gradients", "weights"]}: one box for each reduce-scatter or all-gather."""
    short = max(map(len, sent.values())) > 5
    grid = {
        f"{name}\n{len(each) / 2:g} × plain": {
            str(place): Cell(what[0].upper() if short else what, {0: what})
            for place, what in enumerate(each)
        }
        for name, each in sent.items()
    }
    note = "Each box: (n-1)/n of the model's bytes, sent by each rank."
    return cells(grid, title, heads=False, note=note, high=26)


# --- who stores what ----------------------------------------------------------------------------
# Which rank stores which part under each stage, and what that leaves on one GPU.


_COLUMNS, _SLOTS, _HIGH = 8, 48, 120.0  # ranks; parts of one block that can be seen; all blocks
_KINDS = {"weights": style.WEIGHTS, "gradients": style.GRADIENTS, "optimizer": style.STATES}
_ON_THE_HOST: Mapping[str, style.Look] = {"on the host": (style.STATES, "x")}


def who_stores_what(
    result: ZeroStages, stage: int, capacity_bytes: int, title: str = "", unit: str = "GB"
) -> Drawing:
    """Above: the ranks under `stage`, stored parts filled. Below: bytes per GPU of every stage.

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
    grid, high = {}, {}  # a block is as high as its kind has bytes
    for kind, its in _grid(result, bill).items():
        row = kind + "\n(on the host)" * bool(kind == "optimizer" and bill.host_bytes)
        grid[row], high[row] = its, _HIGH * whole[kind] / sum(whole.values())
    return page(
        title,
        Cells(grid, high=high, note=note, looks=_ON_THE_HOST),
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
    """A column for each rank, a block for each kind: all of it is filled, or the own part."""
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
                own = {rank * slots // result.ranks: word}
                grid[kind][f"GPU {rank}"] = Cell(filled=own, slots=slots, across=1)
    return grid
