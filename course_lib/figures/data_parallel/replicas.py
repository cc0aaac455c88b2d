"""Data parallelism in one update: own samples, own gradients, one mean, equal weights."""

from collections.abc import Sequence
from statistics import fmean

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT

_LEFT, _GAP, _BOX = 96.0, 24.0, 24.0
_ROWS = {"samples": 34.0, "gradient": 74.0, "all-reduce": 116.0, "mean": 148.0, "update": 188.0}
_MOST = 6


def replicas(gradients: Sequence[float], samples: int, title: str = "") -> Drawing:
    """One column a rank: `samples` of its own, the gradient of one weight, and the ranks' mean.

    Raises ValueError for fewer than two ranks or more than six.
    """
    if not 2 <= len(gradients) <= _MOST:
        raise ValueError(f"gradients has {len(gradients)} entries: give one for 2 to {_MOST} ranks")
    mean = fmean(gradients)
    own = ", ".join(f"{gradient:g}" for gradient in gradients)
    sentence = f"{len(gradients)} ranks with the gradients {own}: all get the mean, {mean:g}."
    drawing = Drawing(_ROWS["update"] + _BOX + 8, sentence)
    drawing.title(title)
    for name, y in _ROWS.items():
        drawing.write(_LEFT - 10, y + (10 if name == "all-reduce" else 16), name, align="right")
    width = (WIDTH_PT - _LEFT + _GAP) / len(gradients) - _GAP
    y = _ROWS["all-reduce"]
    drawing.boxes([(_LEFT, y, WIDTH_PT - _LEFT, 14)], style.MESSAGES)
    for rank, gradient in enumerate(gradients):
        x = _LEFT + rank * (width + _GAP)
        rows = (
            ("samples", style.PALE, None, f"{rank * samples} … {(rank + 1) * samples - 1}"),
            ("gradient", style.GRADIENTS, "/", f"{gradient:.3g}"),
            ("mean", style.GRADIENTS, None, f"{mean:.3g}"),
            ("update", style.UPDATE, None, "the same"),
        )
        for name, fill, hatch, text in rows:
            top = _ROWS[name]
            drawing.boxes([(x, top, width, _BOX)], fill, hatch)
            if hatch:
                drawing.boxes([(x + width / 2 - 20, top + 4, 40, _BOX - 8)], fill, edge=fill)
            drawing.write(x + width / 2, top + 16, text, 9, "center", style.on(fill))
        middle, previous = x + width / 2, _ROWS["samples"] + _BOX
        for name in ("gradient", "all-reduce", "mean", "update"):
            top = _ROWS[name]
            drawing.line([(middle, previous), (middle, top)], style.GREY)
            previous = top + (14 if name == "all-reduce" else _BOX)
        drawing.write(middle, 28, f"rank {rank}", 9, "center")
    return drawing
