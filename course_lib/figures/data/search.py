"""A search that doubles, then halves: every try on a line of batch sizes."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT

_LEFT, _TOP, _ROW, _RIGHT = 62.0, 34.0, 15.0, 40.0


def tried_batches(tried: Sequence[int], largest: int) -> Drawing:
    """A line for each try, from the top down, as long as its batch; those that fit are green.

    Raises ValueError without a try.
    """
    if not tried:
        raise ValueError("tried is empty: give the batches in the order in which they were tried")
    scale = (WIDTH_PT - _LEFT - _RIGHT) / max(tried)
    sentence = ", ".join(f"{batch}{'' if batch <= largest else ' (too large)'}" for batch in tried)
    drawing = Drawing(_TOP + _ROW * len(tried) + 10, f"{len(tried)} tries: {sentence}.")
    drawing.write(0, 13, "batch that is tried", size=9, colour=style.GREY)
    end = _LEFT + largest * scale
    bottom = _TOP + _ROW * len(tried)
    for row, batch in enumerate(tried):
        y = _TOP + row * _ROW
        fits = batch <= largest
        fill, hatch = (style.GREEN, None) if fits else (style.WARNING, "/")
        drawing.boxes([(_LEFT, y, batch * scale, _ROW - 4)], fill, hatch)
        drawing.write(_LEFT - 6, y + 9, f"try {row + 1}", size=9, align="right")
        drawing.write(WIDTH_PT - 8, y + 9, f"{batch}", size=9, align="right", bold=fits)
    drawing.line([(end, _TOP - 6), (end, bottom)], style.INK, width=1.2, dashed=True)
    side = "right" if end > WIDTH_PT / 2 else "left"
    drawing.write(end, _TOP - 9, f"largest that fits: {largest}", size=9, align=side, bold=True)
    return drawing
