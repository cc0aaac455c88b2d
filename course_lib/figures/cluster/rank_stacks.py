"""The stacks of several ranks side by side: who waits, and who is elsewhere."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted, elide

_KINDS = {
    "yours": style.COMPUTING,
    "torch": style.PALE,
    "communication": style.MESSAGES,
}
_TOLD = {"yours": "your program", "torch": "torch", "communication": "torch.distributed"}
_TOP, _ROW, _GAP, _MOST, _CHARACTER = 48.0, 15.0, 10.0, 24, 5.7
Line = tuple[str, str]  # function, kind


def rank_stacks(stacks: Mapping[str, Sequence[Line]], title: str = "") -> Drawing:
    """{"rank 0": [("train", "yours"), …, ("all_gather", "communication")]}, the innermost last.

    Each stack grows upwards, the line where the rank stands is outlined. Raises ValueError without
    a line, and for more than six ranks or a kind that is not yours, torch or communication.
    """
    if not stacks or len(stacks) > 6 or not all(stacks.values()):
        raise ValueError("stacks must hold 1 to 6 ranks with a line or more: give their stacks")
    if unknown := {kind for lines in stacks.values() for _, kind in lines} - set(_KINDS):
        raise ValueError(f"kind {sorted(unknown)[0]!r} is not one of {', '.join(_KINDS)}")
    shown = {name: elide(len(lines), _MOST) for name, lines in stacks.items()}
    bottom = _TOP + _ROW * max(map(len, shown.values())) + 8
    drawing = Drawing(bottom + 20, _sentence(stacks))
    drawing.write(0, 13, title, style.TITLE_PT, bold=True)
    for place, (kind, fill) in enumerate(_KINDS.items()):
        drawing.boxes([(1 + 130 * place, 23, 12, 10)], fill)
        drawing.write(19 + 130 * place, 32, _TOLD[kind], 9)
    width = (WIDTH_PT - 2 - _GAP * (len(stacks) - 1)) / len(stacks)
    for column, (name, lines) in enumerate(stacks.items()):
        left = 1 + column * (width + _GAP)
        drawing.write(left + width / 2, bottom + 14, name, align="center", bold=True)
        rows = [
            (bottom - _ROW * (height + 1), *(("…", None) if place is None else lines[place]))
            for height, place in enumerate(shown[name])
        ]
        for kind, fill in _KINDS.items():
            drawing.boxes([(left, y, width, _ROW) for y, _, own in rows if own == kind], fill)
        for own in (None, *_KINDS):
            colour = style.on(_KINDS.get(own or "", style.WHITE))
            words = [
                (left + width / 2, y + 11, _fitting(function, width))
                for y, function, kind in rows
                if kind == own
            ]
            drawing.write_all(words, 9, "center", colour)
        top = bottom - _ROW * len(shown[name])
        corners = [(left, top), (left + width, top), (left + width, top + _ROW), (left, top + _ROW)]
        drawing.line([*corners, corners[0], corners[1]], style.INK, 2)
    return drawing


def _fitting(function: str, width: float) -> str:
    most = int((width - 6) / _CHARACTER)
    return function if len(function) <= most else function[: most - 1] + "…"


def _sentence(stacks: Mapping[str, Sequence[Line]]) -> str:
    told = (
        f"{name} stands in {lines[-1][0]} of {_TOLD[lines[-1][1]]}, {counted(len(lines), 'line')}"
        for name, lines in stacks.items()
    )
    return "; ".join(told) + "."
