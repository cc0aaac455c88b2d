"""What collectives do: before and after, who holds which block."""

from collections.abc import Sequence

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.network.blocks import Exchange, Row


def collective_grid(exchanges: Sequence[Exchange]) -> Drawing:
    """For each collective the ranks' rows before and after it, two collectives side by side.

    A colour for each rank whose numbers are in a block, and the number that it has if rank r's
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
    said = [f"{one.operation}: {_told(one.before)} become {_told(one.after)}" for one in exchanges]
    return Cells(grid, square=22, past=arrows, said=". ".join(said))


def _told(rows: Sequence[Row]) -> str:
    return "; ".join(" ".join(str(block.number) for block in row) or "nothing" for row in rows)


def _cell(row: Row) -> Cell:
    words = [tuple(f"rank {rank}" for rank in block.summands) for block in row]
    filled = {slot: word[0] if len(word) == 1 else word for slot, word in enumerate(words)}
    texts = {slot: str(block.number) for slot, block in enumerate(row)}
    return Cell("", filled, max(1, len(row)), texts=texts)
