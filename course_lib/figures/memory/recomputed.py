"""Which layers are computed again before the backward pass of each layer."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted

_TOP, _LEFT = 50.0, 26.0


def recomputed_layers(runs: Mapping[str, Sequence[range]]) -> Drawing:
    """For each way of keeping inputs a grid: rows are backward passes, the last layer's first.

    `runs[way][i]` are the layers that run again before the backward of layer i. Filled: computed
    again. Raises ValueError unless there are two ways with as many layers, 2 to 16.
    """
    layers = {len(one) for one in runs.values()}
    if len(runs) != 2 or len(layers) != 1 or not 2 <= min(layers) <= 16:
        raise ValueError("runs must hold two ways with 2 to 16 layers: give {way: [range, …]}")
    [count] = layers
    pitch = (WIDTH_PT / 2 - _LEFT - 30) / count
    drawing = Drawing(_TOP + 12.0 * count + 38, _sentence(runs))
    for place, (way, again) in enumerate(runs.items()):
        left = _LEFT + place * (WIDTH_PT / 2)
        drawing.write(left - _LEFT, 13, way, bold=True)
        drawing.write(left, _TOP - 18, "layers computed again", 9, colour=style.GREY)
        names = [(left + (one + 0.5) * pitch, _TOP - 4, str(one + 1)) for one in range(count)]
        drawing.write_all(names, 7.5, "center")
        filled = [
            (left + run.start * pitch, _TOP + row * 12, len(run) * pitch, 12.0)
            for row, run in enumerate(reversed(again))
        ]
        drawing.boxes([(left, _TOP, count * pitch, count * 12.0)], "none", edge=style.GREY)
        drawing.boxes(filled, style.FORWARD)
        for one in range(1, count):
            x = left + one * pitch
            drawing.line([(x, _TOP), (x, _TOP + 12 * count)], style.GREY, 0.4)
        rows = [(left - 6, _TOP + row * 12 + 9, str(count - row)) for row in range(count)]
        drawing.write_all(rows, 7.5, "right")
        total = sum(len(one) for one in again)
        text = f"{counted(total, 'layer')} run again: {total / count:g} × the forward pass"
        drawing.write(left, _TOP + 12 * count + 15, text, 9)
        text = "rows: before the backward pass of this layer"
        drawing.write(left, _TOP + 12 * count + 29, text, 9, colour=style.GREY)
    return drawing


def _sentence(runs: Mapping[str, Sequence[range]]) -> str:
    words = [
        f"{way}: {counted(sum(map(len, again)), 'layer')} of {len(again)} run again"
        for way, again in runs.items()
    ]
    return "; ".join(words) + "."
