"""The rows of a fused matrix of queries, keys and values, and which ranks take them."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT

_LEFT, _TOP, _HIGH, _ROW = 130.0, 40.0, 22.0, 48.0
_PARTS = ("queries", "keys", "values")
_MOST_ROWS = 96


def fused_rows(cuts: Mapping[str, Sequence[Sequence[int]]], parts: Sequence[int]) -> Drawing:
    """One strip for each way to cut: {name: [rows of rank 0, rows of rank 1, …]}.

    `parts` are the rows of queries, keys and values. A row of several ranks shows the first.
    Raises ValueError for more than 96 rows or seven ranks.
    """
    total = sum(parts)
    if total > _MOST_ROWS or any(len(ranks) > len(style.SERIES) for ranks in cuts.values()):
        raise ValueError(f"{total} rows: draw at most {_MOST_ROWS}, of at most 7 ranks")
    drawing = Drawing(_TOP + _ROW * len(cuts) + 4, _sentence(cuts, parts))
    width = (WIDTH_PT - _LEFT - 8) / total
    starts = [sum(parts[:place]) for place in range(len(parts))]
    for name, start, size in zip(_PARTS, starts, parts, strict=True):
        middle = _LEFT + (start + size / 2) * width
        drawing.write(middle, _TOP - 14, f"{size} rows: {name}", size=9, align="center")
    for place, (name, ranks) in enumerate(cuts.items()):
        y = _TOP + place * _ROW
        drawing.write(_LEFT - 8, y + 15, name, align="right")
        for rank, rows in enumerate(ranks):
            fill, hatch = style.SERIES[rank]
            boxes = [(_LEFT + row * width, y, width, _HIGH) for row in rows]
            drawing.boxes(boxes, fill, hatch[0] if hatch else None)
            for first, last in _runs(rows):
                middle = _LEFT + (first + last + 1) / 2 * width
                drawing.write(middle, y + _HIGH + 12, f"{rank}", size=9, align="center")
        for start in starts[1:]:
            x = _LEFT + start * width
            drawing.line([(x, y - 5), (x, y + _HIGH + 5)], style.INK, width=2)
    drawing.write(_LEFT - 8, _TOP + _HIGH + 12, "rank", size=9, align="right", colour=style.GREY)
    return drawing


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """First and last row of each stretch without a gap."""
    found: list[tuple[int, int]] = []
    for row in sorted(rows):
        if found and row == found[-1][1] + 1:
            found[-1] = (found[-1][0], row)
        else:
            found.append((row, row))
    return found


def _sentence(cuts: Mapping[str, Sequence[Sequence[int]]], parts: Sequence[int]) -> str:
    def told(rows: Sequence[int]) -> str:
        return " and ".join(f"{first} to {last}" for first, last in _runs(rows))

    strips = "; ".join(
        f"{name}: "
        + ", ".join(f"rank {rank} takes {told(rows)}" for rank, rows in enumerate(ranks))
        for name, ranks in cuts.items()
    )
    return f"{' + '.join(map(str, parts))} rows of queries, keys and values; {strips}."
