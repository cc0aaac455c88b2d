"""Which layer lies in which buffer while one computes: the two pairs of YaFSDP."""

from collections.abc import Sequence
from typing import Protocol

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.sheet import Sheet

_LEFT, _TOP, _ROW, _HIGH = 106.0, 46.0, 26.0, 20.0
_ROWS = ("computes", "weights, even", "weights, odd", "gradients, even", "gradients, odd")
_MOST = 24


class Moment(Protocol):
    """What lies where while `layer` computes; None is an empty buffer."""

    @property
    def phase(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def weights(self) -> Sequence[int | None]: ...
    @property
    def gradients(self) -> Sequence[int | None]: ...


def two_buffers(moments: Sequence[Moment], title: str = "") -> Sheet:
    """A column for each moment: the layer that computes, and the four buffers below it.

    A `phase` is "forward" or "backward". Raises ValueError without a moment or with more than 24.
    """
    if not 0 < len(moments) <= _MOST:
        raise ValueError(f"moments has {len(moments)} entries: give 1 to {_MOST}")
    bottom = _TOP + _ROW * len(_ROWS)
    sheet = Sheet(bottom + 42, _sentence(moments, title))
    sheet.title(title)
    for row, name in enumerate(_ROWS):
        sheet.write(_LEFT - 8, _TOP + row * _ROW + 14, name, align="right", bold=not row)
    width = min((WIDTH_PT - _LEFT - 4) / len(moments), 60.0)
    looks: dict[tuple[str, bool], list[Box]] = {}
    for place, moment in enumerate(moments):
        x = _LEFT + place * width
        for row, layer in enumerate((moment.layer, *moment.weights, *moment.gradients)):
            if layer is not None:
                y = _TOP + row * _ROW
                look = _fill(row, moment.phase), layer != moment.layer
                looks.setdefault(look, []).append((x + 1, y, width - 2, _HIGH))
                ink = style.ON_FILL
                sheet.write(x + width / 2, y + 14, str(layer), size=9, align="center", colour=ink)
    for (fill, waiting), boxes in looks.items():
        sheet.boxes(boxes, fill, dashed=waiting)
    _phases(sheet, moments, width)
    sheet.boxes([(_LEFT, bottom + 2, 14, 12)], style.WHITE)
    sheet.write(_LEFT + 20, bottom + 12, "the layer that computes")
    sheet.boxes([(_LEFT, bottom + 20, 14, 12)], style.WHITE, dashed=True)
    text = "meanwhile: weights of the layer to come, gradients of the layer before"
    sheet.write(_LEFT + 20, bottom + 30, text)
    return sheet


def _fill(row: int, phase: str) -> str:
    """The colour of a row's boxes: what computes, gathered weights, gradients."""
    if row == 0:
        return style.FORWARD if phase == "forward" else style.BACKWARD
    return style.TEMPORARY if row <= 2 else style.GRADIENTS


def _phases(sheet: Sheet, moments: Sequence[Moment], width: float) -> None:
    """The names of the two passes, each above its first moment."""
    before = ""
    for place, moment in enumerate(moments):
        x = _LEFT + place * width
        if moment.phase != before:
            sheet.write(x + 2, _TOP - 12, moment.phase, colour=style.GREY)
            sheet.line([(x, _TOP - 22), (x, _TOP + _ROW * len(_ROWS) - 4)], style.GREY)
        before = moment.phase


def _sentence(moments: Sequence[Moment], title: str) -> str:
    def told(moment: Moment) -> str:
        held = [
            " and ".join(str(layer) for layer in pair if layer is not None) or "none"
            for pair in (moment.weights, moment.gradients)
        ]
        return f"{moment.phase} of {moment.layer}: weights of {held[0]}, gradients of {held[1]}"

    return f"{title}: " * bool(title) + "; ".join(map(told, moments)) + "."
