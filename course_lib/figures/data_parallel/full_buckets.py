"""A bucket on each rank, with a slot for each gradient: which came, and whether it is full."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import width_pt

_TOP, _ROW, _BOX, _TOLD, _SIZE = 26.0, 34.0, 22.0, 78.0, 9.0
_MOST = 6  # slots


def full_buckets(came: Mapping[str, Mapping[str, bool]], title: str = "") -> Drawing:
    """{"rank 0": {"weight": True, "bias": False}}: hatched are gradients that came.

    Raises ValueError without a gradient, and for more than six in one bucket.
    """
    if not came or not all(0 < len(slots) <= _MOST for slots in came.values()):
        raise ValueError(
            f"came must hold 1 to {_MOST} gradients a rank: give {{rank: {{name: …}}}}"
        )
    sentence = "; ".join(f"{rank}: {_told(slots)}" for rank, slots in came.items())
    drawing = Drawing(_TOP + _ROW * len(came), f"{title}. {sentence}.")
    drawing.title(title)
    left = max(width_pt(rank, _SIZE) for rank in came) + 12
    for row, (rank, slots) in enumerate(came.items()):
        y = _TOP + _ROW * row
        drawing.write(left - 8, y + 14.5, rank, _SIZE, "right")
        width = (WIDTH_PT - left - _TOLD) / len(slots)
        for place, (name, there) in enumerate(slots.items()):
            box = (left + place * width, y, width, _BOX)
            fill = style.GRADIENTS if there else style.WHITE
            drawing.boxes([box], fill, "/" if there else None, style.INK, dashed=not there)
            words = min(width_pt(name, _SIZE), width - 4)
            behind = (box[0] + (width - words) / 2, y + 4, words, _BOX - 8)
            drawing.boxes([behind], fill, edge=fill)
            ink = style.on(fill) if there else style.GREY
            drawing.write(box[0] + width / 2, y + 14.5, name, _SIZE, "center", ink)
        corners = [(left, y - 3), (left, y + _BOX + 3), (left + width * len(slots), y + _BOX + 3)]
        drawing.line([*corners, (corners[-1][0], y - 3)], width=1.5)
        full = all(slots.values())
        colour = style.INK if full else style.WARNING_TEXT
        told = "full: is sent" if full else "never full"
        drawing.write(WIDTH_PT - _TOLD + 10, y + 14.5, told, _SIZE, colour=colour)
    return drawing


def _told(slots: Mapping[str, bool]) -> str:
    there = sum(slots.values())
    end = "it is sent" if there == len(slots) else "it is never full"
    return f"{there} of {len(slots)} gradients came, {end}"
