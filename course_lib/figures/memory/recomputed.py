"""Which layers are computed again before the backward pass of each layer."""

from collections.abc import Mapping, Sequence

from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.trace import Event


def recomputed_layers(runs: Mapping[str, Sequence[range]]) -> Drawing:
    """For each way of keeping inputs its backward passes, the last layer's first.

    `runs[way][i]` are the layers that run again before the backward of layer i.
    """
    return page("", *[_chart(way, again) for way, again in runs.items()])


def _chart(way: str, again: Sequence[range]) -> Lanes:
    rows = {
        f"before {row + 1}'s backward": [
            Event(layer, 0, "forward", end=layer + 1, label=str(layer + 1)) for layer in again[row]
        ]
        for row in reversed(range(len(again)))
    }
    total = sum(map(len, again))
    said = f"{way}: {counted(total, 'layer')} run again, {total / len(again):g} × the forward pass"
    return Lanes(rows, name=said, over=(0, len(again)), high=11.5, foot=False, sentence=said)
