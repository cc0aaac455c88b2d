"""Figures of chapter 6, in addition to those of the library."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from course_lib.chapters.ch06_collectives.blocks import Exchange, Row
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lines import Curve, graph, powers
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, Point, counted
from course_lib.theory.inputs.units import format_bytes, format_seconds
from course_lib.theory.network.all_reduce import RingOrTree, ring_or_tree

# --- The blocks that each rank holds before and after a collective --------------------------------


def collective_grid(exchanges: Sequence[Exchange]) -> Drawing:
    """Draw the ranks' rows before and after each collective, two collectives side by side.

    A block has a colour for each rank whose numbers are in it, and shows its value if rank r's
    row is 1·10^r, 2·10^r, …
    """
    pairs = [exchanges[start : start + 2] for start in range(0, len(exchanges), 2)]
    return page("", *map(_block, pairs))


def _block(exchanges: Sequence[Exchange]) -> Cells:
    grid: dict[str, dict[str, Cell]] = {}
    for one in exchanges:
        for when, rows in (("before", one.before), ("after", one.after)):
            for rank, row in enumerate(rows):
                grid.setdefault(f"rank {rank}", {})[f"{one.operation}\n{when}"] = _cell(row)
    start = [*grid][len(grid) // 2]
    arrows = [
        ((start, f"{one.operation}\nbefore"), (start, f"{one.operation}\nafter"))
        for one in exchanges
    ]
    said = [f"{one.operation}: {_text(one.before)} become {_text(one.after)}" for one in exchanges]
    return Cells(grid, square=22, past=arrows, said=". ".join(said))


def _text(rows: Sequence[Row]) -> str:
    return "; ".join(" ".join(str(block.number) for block in row) or "nothing" for row in rows)


def _cell(row: Row) -> Cell:
    words = [tuple(f"rank {rank}" for rank in block.summands) for block in row]
    filled = {slot: word[0] if len(word) == 1 else word for slot, word in enumerate(words)}
    texts = {slot: str(block.number) for slot, block in enumerate(row)}
    return Cell("", filled, max(1, len(row)), texts=texts)


# --- Time of a collective against its size: ring, tree, and their crossover -----------------------

_LOOKS = {"ring": (style.MESSAGES, False), "tree": (style.BLUE, True)}  # colour, dashed
_SAMPLES = 24  # points per curve, enough to look smooth


def collective_times(
    result: RingOrTree,
    title: str = "",
    smallest: int = 2**10,
    largest: int = 2**32,
    measured: Mapping[str, Sequence[Point]] | None = None,
) -> Drawing:
    """Plot seconds against bytes, both logarithmic, and mark the result's size and the crossover.

    `measured` is {"ring": [(bytes, seconds), …], "tree": …}, drawn as dots over the curves of these
    algorithms alone; the size is then not "yours", and not marked.
    """
    sizes = [smallest * (largest / smallest) ** (part / _SAMPLES) for part in range(_SAMPLES + 1)]
    runs = [
        ring_or_tree(result.operation, size, result.ranks, result.link, tree=result.tree)
        for size in sizes
    ]
    algorithms = {"ring": ("ring", result.ring_steps, result.ring_s)}
    if result.tree_steps is not None and result.tree_s is not None:
        algorithms["tree"] = (result.tree, result.tree_steps, result.tree_s)
    if measured:
        algorithms = {kind: algorithms[kind] for kind in algorithms if kind in measured}
    where = _size(result.size_bytes) if measured else "your size"
    curves = {}
    for kind, (name, steps, time_s) in algorithms.items():
        points = [(run.size_bytes, getattr(run, f"{kind}_s")) for run in runs]
        dots = (measured or {kind: [(result.size_bytes, time_s)]}).get(kind, ())
        label = f"{format_seconds(time_s)} at {where}"
        curves[f"{name}, {counted(steps, 'step')}"] = Curve(
            points, _LOOKS[kind][0], label, _LOOKS[kind][1], dots
        )
    yours = {f"your size: {_size(result.size_bytes)}": result.size_bytes}
    marks, crossing = {} if measured else yours, ""
    if measured and "tree" not in measured:
        crossing = ""  # there is nothing to compare the ring with
    elif result.crossover_bytes is None:
        crossing = "there is no tree for it"
    elif not smallest <= result.crossover_bytes <= largest:
        at = _size(result.crossover_bytes)
        crossing = f"the tree is faster {f'below {at}' if result.crossover_bytes else 'at no size'}"
    else:
        marks[f"the tree is faster below {_size(result.crossover_bytes)}"] = result.crossover_bytes
    notes = [crossing] * bool(crossing) + ["dots: measured, lines: α–β model"] * bool(measured)
    times = [y for curve in curves.values() for _, y in [*curve.points, *curve.dots] if y > 0]
    across = powers(sizes, _size, "size of the whole tensor", base=2, most=7)
    up = powers(times, format_seconds, "time of one call (both axes logarithmic)", most=8)
    heading = f"{result.operation}, {counted(result.ranks, 'rank')}, {result.link.name}"
    axis = replace(across, ends=(smallest, largest))
    return graph(curves, title or heading, axis, up, marks=marks, notes=notes).drawing


def _size(size_bytes: float) -> str:
    digits = 0 if size_bytes == int(size_bytes) and int(size_bytes).bit_count() == 1 else 2
    return format_bytes(size_bytes, "GiB", digits)
