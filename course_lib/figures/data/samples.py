"""Which samples each rank saw."""

from collections.abc import Sequence

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted, elide

_COLUMNS, _ROWS = 16, 8


def samples_by_rank(epochs: Sequence[Sequence[Sequence[int]]]) -> Drawing:
    """For each epoch, a row per rank with the sample indices in the order it saw them.

    `epochs[e][r]` are the indices of rank r in epoch e. A sample that was seen before in its
    epoch stands in brackets.
    """
    blocks = []
    for number, ranks in enumerate(epochs):
        same = number > 0 and list(map(list, ranks)) == list(map(list, epochs[number - 1]))
        note = ": the same order as the epoch before" if same else ""
        blocks.append(_epoch(ranks, f"Epoch {number}{note}"))
    return page("", *blocks, key=())


def _epoch(ranks: Sequence[Sequence[int]], heading: str) -> Cells:
    """Ranks work side by side: place 0 of every rank comes before place 1 of any."""
    longest = max(map(len, ranks))
    seen: set[int] = set()
    every: list[dict[int, Cell]] = [{} for _ in ranks]
    for place in range(longest):
        for rank, its in enumerate(ranks):
            if place < len(its):
                again = its[place] in seen
                text = f"({its[place]})" if again else str(its[place])
                every[rank][place] = Cell(text, {0: "again" if again else "computing"})
                seen.add(its[place])
    shown = elide(longest, _COLUMNS)
    dots = Cell("…", slots=0)
    grid: dict[str, dict[str, Cell]] = {heading: {}}
    for rank_or_none in elide(len(ranks), _ROWS):
        if rank_or_none is None:
            grid["…"] = {"0": Cell(slots=0)}
            continue
        row = every[rank_or_none]
        grid[f"rank {rank_or_none}"] = {
            "…" if place is None else str(place): dots if place is None else row[place]
            for place in shown
            if place is None or place in row
        }
    twice = sum(map(len, ranks)) - len(seen)
    each = ", ".join(
        f"rank {rank} saw {counted(len(its), 'sample')}" for rank, its in enumerate(ranks[:_ROWS])
    )
    more = ", …" if len(ranks) > _ROWS else ""
    said = f"{heading}: {each}{more}; {counted(twice, 'sample')} seen again"
    return Cells(grid, heads=False, gap=3, said=said)
