"""What a rank sends in an update under each stage of ZeRO, in halves of an all-reduce."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT

_LEFT, _TOP, _ROW, _BOX = 72.0, 44.0, 30.0, 20.0
_FILLS = {"gradients": style.GRADIENTS, "weights": style.WEIGHTS}


def halves(sent: Mapping[str, Sequence[str]], title: str = "") -> Drawing:
    """{"stage 1": ["gradients", "weights"]}: one box for each reduce-scatter or all-gather.

    All boxes are as wide as their bytes, which are the same. Raises ValueError for another word.
    """
    if unknown := {what for each in sent.values() for what in each} - set(_FILLS):
        raise ValueError(f"{sorted(unknown)} is neither gradients nor weights: name these")
    most = max(map(len, sent.values()))
    counts = ", ".join(f"{name} {len(each)}" for name, each in sent.items())
    drawing = Drawing(_TOP + _ROW * len(sent) + 2, f"{title}. Halves of an all-reduce: {counts}.")
    drawing.title(title)
    drawing.write(
        0, 30, "Each box: (n-1)/n of the model's bytes, sent by each rank.", 9, colour=style.GREY
    )
    width = min(84.0, (WIDTH_PT - _LEFT - 74) / most)
    for row, (name, each) in enumerate(sent.items()):
        y = _TOP + _ROW * row
        drawing.write(_LEFT - 8, y + 14, name, align="right")
        for place, what in enumerate(each):
            x = _LEFT + place * width
            drawing.boxes([(x + 1, y, width - 2, _BOX)], _FILLS[what])
            text = what if width > 60 else what[0].upper()
            drawing.write(x + width / 2, y + 14, text, 9, "center", style.on(_FILLS[what]))
        times = f"{len(each) / 2:g} × plain"
        drawing.write(_LEFT + len(each) * width + 8, y + 14, times)
    return drawing
