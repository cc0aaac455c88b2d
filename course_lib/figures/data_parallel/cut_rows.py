"""How tensors are cut one by one, by rows: which rows of each a rank keeps."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted
from course_lib.theory.network.zero import shard

_LEFT, _TOP, _CELL, _GAP = 84.0, 46.0, 13.0, 14.0
_MOST_ROWS, _MOST_COLUMNS, _MOST_RANKS = 8, 4, 4
Sizes = tuple[int, int]  # rows, columns


def cut_rows(tensors: Mapping[str, Sizes], ranks: int) -> Drawing:
    """A line for each tensor (name: rows and columns): the whole one, and each rank's rows.

    Dashed is the padding of a rank with fewer rows than the others. Raises ValueError for no
    tensor, for one above 8 × 4, and for more than 4 ranks.
    """
    if not tensors or not 1 <= ranks <= _MOST_RANKS:
        raise ValueError(f"{len(tensors)} tensors, {ranks} ranks: give some, and 1 to 4 ranks")
    for name, (rows, columns) in tensors.items():
        if not (1 <= rows <= _MOST_ROWS and 1 <= columns <= _MOST_COLUMNS):
            raise ValueError(f"{name} is {rows} × {columns}: draw 1 × 1 to 8 × 4")
    heights = [-(-rows // ranks) * ranks * _CELL + _GAP for rows, _ in tensors.values()]
    drawing = Drawing(_TOP + sum(heights), _sentence(tensors, ranks))
    drawing.title(f"Each tensor by itself, cut by rows over {counted(ranks, 'rank')}")
    step = (WIDTH_PT - _LEFT) / (ranks + 1)
    heads = ["whole", *(f"rank {rank}" for rank in range(ranks))]
    for place, head in enumerate(heads):
        drawing.write(_LEFT + place * step, _TOP - 10, head, size=9, colour=style.GREY)
    y = _TOP
    for place, (name, (rows, columns)) in enumerate(tensors.items()):
        look = style.SERIES[place % len(style.SERIES)][0]
        drawing.write(_LEFT - 10, y + rows * _CELL / 2 + 4, name, align="right")
        drawing.boxes(_cells(_LEFT, y, 0, rows, columns), look)
        for rank in range(ranks):
            x, part = _LEFT + (rank + 1) * step, shard(rows, ranks, rank)
            drawing.boxes(_cells(x, y, part.start, part.stop, columns), look)
            padded = _cells(x, y, part.stop, part.stop + part.zeros, columns)
            drawing.boxes(padded, style.WHITE, dashed=True)
        y += heights[place]
    return drawing


def _cells(x: float, y: float, start: int, stop: int, columns: int) -> list[Box]:
    """The cells of rows start … stop - 1, each row at its place in the whole tensor."""
    return [
        (x + column * _CELL, y + row * _CELL, _CELL, _CELL)
        for row in range(start, stop)
        for column in range(columns)
    ]


def _sentence(tensors: Mapping[str, Sizes], ranks: int) -> str:
    def told(rows: int) -> str:
        parts = [shard(rows, ranks, rank) for rank in range(ranks)]
        return ", ".join(str(part.stop - part.start) for part in parts)

    words = "; ".join(
        f"{name} of {rows} × {columns}: {told(rows)} rows"
        for name, (rows, columns) in tensors.items()
    )
    return f"Rows that ranks 0 to {ranks - 1} keep. {words}."
