"""Blocks below one another with one title, one key and one sentence: what every picture is."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import width_pt

LEFT, RIGHT = (
    66.0,
    WIDTH_PT - 8.0,
)  # what all blocks with a scale share, unless their names are long
_TITLE, _GAP, _NOTE, _KEY_LINE, _SMALL = 22.0, 10.0, 15.0, 16.0, 9.0


class Block(Protocol):
    """A part of a page: so high, drawn from `top` down. `words`: the meanings of its colours."""

    @property
    def height_pt(self) -> float: ...
    @property
    def words(self) -> Iterable[str]: ...
    @property
    def sentence(self) -> str: ...
    def draw(self, drawing: Drawing, top: float) -> None: ...


def page(
    title: str,
    *blocks: Block,
    notes: Sequence[str] = (),
    key: Sequence[str] | None = None,
    sentence: str = "",
) -> Drawing:
    """The blocks, then the key, then `notes` in grey.

    `key`: words to explain, for stories whose steps must be equally high; by default those that
    occur, if there are two or more. `sentence`: said before what the blocks say of themselves.
    """
    words = list(dict.fromkeys(word for block in blocks for word in block.words))
    looks = style.meanings(words if key is None else key)
    if key is None and len(looks) < 2:
        looks = {}
    head = _TITLE if title else 4.0
    tops = [head]
    for block in blocks:
        tops.append(tops[-1] + block.height_pt + _GAP)
    places = _places(looks)
    key_height = places[-1][1] + _KEY_LINE + 4 if places else 0.0
    said = [sentence or title, *(block.sentence for block in blocks)]
    height = tops[-1] + key_height + _NOTE * len(notes)
    drawing = Drawing(height, " ".join(f"{one.rstrip('.')}." for one in said if one))
    if title:
        drawing.title(title)
    for block, top in zip(blocks, tops[:-1], strict=True):
        block.draw(drawing, top)
    for (word, (fill, hatch)), (x, y) in zip(looks.items(), places, strict=True):
        drawing.boxes([(x, tops[-1] + y, 11, 11)], fill, hatch)
        drawing.write(x + 16, tops[-1] + y + 9.5, word, _SMALL)
    for place, note in enumerate(notes):
        y = tops[-1] + key_height + _NOTE * place + 9
        drawing.write(0, y, note, _SMALL, colour=style.GREY)
    return drawing


def _places(words: Iterable[str]) -> list[tuple[float, float]]:
    """Where each box of the key begins; in as many lines as needed."""
    places: list[tuple[float, float]] = []
    x = y = 0.0
    for word in words:
        width = width_pt(word, _SMALL) + 30
        if places and x + width - 14 > WIDTH_PT:
            x, y = 0.0, y + _KEY_LINE
        places.append((x, y))
        x += width
    return places
