"""What a container sees of its node only if it is given: by docker's option, or a pod's field."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted

_TOP, _ROW, _PART, _WALL = 50.0, 46.0, 96.0, 360.0
Gate = tuple[str, str, str, str]  # part of the node, docker's option, the pod's field, without it


def container_wall(gates: Sequence[Gate], title: str = "") -> Drawing:
    """`gates`: (part of the node, docker's option, the pod's field, what happens without it).

    Raises ValueError without a gate.
    """
    if not gates:
        raise ValueError("gates is empty: give (part, docker's option, pod's field, without it)")
    told = "; ".join(
        f"{part}: {docker}, or {pod}; without it: {without}" for part, docker, pod, without in gates
    )
    bottom = _TOP + _ROW * len(gates)
    drawing = Drawing(bottom + 4, f"{counted(len(gates), 'part')} of a node. {told}.")
    drawing.write(0, 13, title, style.TITLE_PT, bold=True)
    drawing.boxes([(1, 24, _PART + 16, bottom - 22)], style.WHITE, edge=style.GREY)
    drawing.boxes([(_WALL, 24, WIDTH_PT - _WALL - 1, bottom - 22)], style.WHITE)
    drawing.line([(_WALL, 24), (_WALL, bottom + 2)], style.INK, 4)
    heads = (
        (9.0, "the node has", style.INK),
        (124.0, "docker's option, and a pod's field", style.GREY),
        (_WALL + 10, "a container without it", style.INK),
    )
    for x, words, colour in heads:
        drawing.write(x, 40, words, 9, colour=colour, bold=colour == style.INK)
    for row, (part, docker, pod, without) in enumerate(gates):
        y = _TOP + _ROW * row + 20
        drawing.boxes([(9, y - 13, _PART, 26)], style.COMPUTING)
        drawing.write(9 + _PART / 2, y + 4, part, align="center", colour=style.ON_FILL)
        arrow(drawing, (9 + _PART, y), (_WALL - 4, y), style.MESSAGES, 2)
        drawing.write(124, y - 5, docker, 9)
        drawing.write(124, y + 13, pod, 9, colour=style.GREY)
        drawing.write(_WALL + 10, y + 4, without, 9, colour=style.WARNING_TEXT)
    return drawing
