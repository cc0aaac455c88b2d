"""A key: small boxes with their names, line after line, for parts that have no room for a name."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.style import Look
from course_lib.figures.paper.text import width_pt

_LINE, _SIZE = 16.0, 9.0


def key_height(fills: Mapping[str, str | Look], left: float) -> float:
    """How much room `key` needs below its top."""
    return _places(fills, left)[-1][1] + _LINE + 4 if fills else 0.0


def key(drawing: Drawing, fills: Mapping[str, str | Look], left: float, top: float) -> None:
    """A box of its colour and its name for each, from `left` on and in as many lines as needed."""
    for (name, fill), (x, y) in zip(fills.items(), _places(fills, left), strict=True):
        look, hatch = (fill, None) if isinstance(fill, str) else fill
        drawing.boxes([(x, top + y, 11, 11)], look, hatch, dashed=look == style.WHITE)
        drawing.write(x + 16, top + y + 9.5, name, size=_SIZE)


def _places(names: Mapping[str, str | Look], left: float) -> list[tuple[float, float]]:
    """Where each box begins; y counts from the key's top."""
    places: list[tuple[float, float]] = []
    x, y = left, 0.0
    for name in names:
        width = width_pt(name, _SIZE) + 30
        if places and x + width - 14 > WIDTH_PT:
            x, y = left, y + _LINE
        places.append((x, y))
        x += width
    return places
