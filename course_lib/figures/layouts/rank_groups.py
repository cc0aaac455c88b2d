"""One rank and those it talks to along each axis."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT

_TOP, _HIGH, _GAP = 28.0, 26.0, 10.0
_MOST = 32


def rank_groups(groups: Mapping[str, Sequence[int]], ranks: int, per_node: int) -> Drawing:
    """A row for each node, a box for each rank; in colour the groups that share a rank.

    `groups`: {"tp": [12, 13, 14, 15], …}, all with one rank in common, which gets a thick frame.
    Raises ValueError for more than 32 ranks or where the groups have no one rank in common.
    """
    common = set.intersection(*map(set, groups.values())) if groups else set()
    if len(common) != 1 or not 1 <= ranks <= _MOST:
        raise ValueError(f"groups share ranks {sorted(common)} of {ranks}: give groups of one rank")
    (me,) = common
    rows = -(-ranks // per_node)
    parts = "; ".join(f"{axis}: {', '.join(map(str, its))}" for axis, its in groups.items())
    title = f"Rank {me} of {ranks} and its groups"
    drawing = Drawing(_TOP + rows * (_HIGH + _GAP) + 22, f"{title}: {parts}.")
    drawing.title(title)
    looks = style.looks(list(groups), {axis: (fill, None) for axis, fill in style.AXES.items()})
    left = 62.0
    width = (WIDTH_PT - left - 8) / per_node
    for rank in range(ranks):
        row, column = divmod(rank, per_node)
        x, y = left + column * width, _TOP + row * (_HIGH + _GAP)
        if not column:
            drawing.write(left - 8, y + 17, f"node {row}", align="right")
        axes = [axis for axis, its in groups.items() if rank in its and rank != me]
        fill, hatch = looks[axes[0]] if axes else (style.PALE, None)
        drawing.boxes([(x + 2, y, width - 4, _HIGH)], fill, hatch[0] if hatch else None)
        ink, bold = style.on(fill), rank == me
        drawing.write(x + width / 2, y + 17, str(rank), align="center", colour=ink, bold=bold)
        if rank == me:
            corners = [(x + 1, y - 2), (x + width - 1, y - 2)]
            corners += [(x + width - 1, y + _HIGH + 2), (x + 1, y + _HIGH + 2), (x + 1, y - 2)]
            drawing.line(corners, style.INK, width=2)
    y = _TOP + rows * (_HIGH + _GAP) + 4
    for place, axis in enumerate(groups):
        fill, hatch = looks[axis]
        x = left + place * 150
        drawing.boxes([(x, y, 13, 10)], fill, hatch[0] if hatch else None)
        drawing.write(x + 18, y + 9, f"{axis} group of rank {me}", size=9)
    return drawing
