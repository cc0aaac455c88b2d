"""Who holds which part of a layer: sharding strategies on a few nodes."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT

_LEFT, _TOP, _HIGH, _ROW = 130.0, 34.0, 36.0, 56.0
_GAP = 14.0  # between nodes
_MOST = 16


def shard_groups(strategies: Mapping[str, int], nodes: int, per_node: int) -> Drawing:
    """A column for each GPU, filled where it holds the layer: {strategy: ranks in a shard group}.

    In a group of g ranks each holds 1/g, rank r the part number r mod g. Raises ValueError for
    more than 16 GPUs, and for a group that does not divide them.
    """
    ranks = nodes * per_node
    if not 1 <= ranks <= _MOST:
        raise ValueError(f"nodes {nodes} × per_node {per_node}: draw at most {_MOST} GPUs")
    for name, group in strategies.items():
        if group < 1 or ranks % group:
            raise ValueError(f"{name}: a group of {group} does not divide {ranks} GPUs")
    drawing = Drawing(_TOP + _ROW * len(strategies), _sentence(strategies, ranks))
    width = (WIDTH_PT - _LEFT - 8 - _GAP * (nodes - 1)) / ranks
    places = [_LEFT + rank * width + _GAP * (rank // per_node) for rank in range(ranks)]
    for node in range(nodes):
        middle = (places[node * per_node] + places[(node + 1) * per_node - 1] + width) / 2
        drawing.write(middle, 13, f"node {node}", align="center", bold=True)
    for row, (name, group) in enumerate(strategies.items()):
        y = _TOP + row * _ROW - 8
        drawing.write(_LEFT - 8, y + 16, name, align="right")
        part = "all of it" if group == 1 else f"1/{group} on each GPU"
        drawing.write(_LEFT - 8, y + 30, part, size=9, align="right", colour=style.GREY)
        high = _HIGH / group
        drawing.boxes([(x + 2, y, width - 4, _HIGH) for x in places], style.WHITE, edge=style.GREY)
        held = [(x + 2, y + rank % group * high, width - 4, high) for rank, x in enumerate(places)]
        drawing.boxes(held, style.WEIGHTS)
    return drawing


def _sentence(strategies: Mapping[str, int], ranks: int) -> str:
    parts = [
        f"{name}: each of {ranks} GPUs holds 1/{group}, {ranks // group} of them the same part"
        for name, group in strategies.items()
    ]
    return "; ".join(parts) + "."
