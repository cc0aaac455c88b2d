"""A figure made of vertically stacked blocks, with one title, one key and one description."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, key_height
from course_lib.figures.paper.drawing import key as key_of
from course_lib.figures.paper.style import Look

LEFT, RIGHT = 66.0, WIDTH_PT - 8.0  # edges of a time scale, unless row names need more room
_TITLE, _GAP, _NOTE, _SMALL = 22.0, 10.0, 15.0, 9.0


class Block(Protocol):
    """A part of a page, drawn from `top` down; `words` are its entries in the key."""

    @property
    def height_pt(self) -> float: ...
    @property
    def words(self) -> Iterable[str]: ...
    @property
    def sentence(self) -> str: ...
    def draw(self, drawing: Drawing, top: float) -> None: ...


class Timed:
    """A block on a time scale, from over[0] to over[1]; a line marks `now`.

    A page aligns all its timed blocks: they share the left edge of the widest names and the scale
    of the longest, so equal times are below one another if the blocks begin at the same time.
    """

    def __init__(
        self, over: tuple[float, float], now: float | None = None, left: float = LEFT
    ) -> None:
        self.over, self.now, self.left = over, now, left

    @property
    def scale(self) -> float:
        """Points per unit of time."""
        return (RIGHT - self.left) / max(self.over[1] - self.over[0], 1e-12)

    def x(self, time: float) -> float:
        """The x position of a time."""
        return self.left + (time - self.over[0]) * self.scale

    def later(self, time: float) -> bool:
        """Whether `time` is after `now`."""
        return self.now is not None and time > self.now + 1e-9 * (self.over[1] - self.over[0])

    def cursor(self, drawing: Drawing, top: float, bottom: float) -> None:
        """Draw the line of `now` through the block."""
        if self.now is not None:
            x = self.x(self.now)
            drawing.line([(x, top - 3), (x, bottom + 3)], style.INK, 1.6)


def page(
    title: str,
    *blocks: Block,
    notes: Sequence[str] = (),
    key: Sequence[str] | None = None,
    sentence: str = "",
) -> Drawing:
    """Draw the blocks, then the key, then `notes` in grey.

    `key`: words to explain, for stories whose steps must be equally high; by default those that
    occur, if they have two looks or more. Words of one look share an entry: "backward, or input's
    gradient". `sentence`: begins the description, instead of the title.
    """
    timed = [block for block in blocks if isinstance(block, Timed)]
    left = max((block.left for block in timed), default=LEFT)
    whole = max((block.over[1] - block.over[0] for block in timed), default=0.0)
    for block in timed:
        block.left, block.over = left, (block.over[0], block.over[0] + whole)
    words = dict.fromkeys(word for block in blocks for word in block.words)
    own = {word: look for block in blocks for word, look in getattr(block, "looks", {}).items()}
    looks = _looks(words if key is None else key, own)
    if key is None and len(looks) < 2:
        looks = {}
    tops = [_TITLE if title else 4.0]
    for each in blocks:
        tops.append(tops[-1] + each.height_pt + _GAP)
    room = key_height(looks, 0.0)
    said = [sentence or title, *(block.sentence for block in blocks)]
    height = tops[-1] + room + _NOTE * len(notes)
    drawing = Drawing(height, " ".join(f"{one.rstrip('.')}." for one in said if one))
    if title:
        drawing.title(title)
    for each, top in zip(blocks, tops[:-1], strict=True):
        each.draw(drawing, top)
    key_of(drawing, looks, 0.0, tops[-1])
    for place, note in enumerate(notes):
        y = tops[-1] + room + _NOTE * place + 9
        drawing.write(0, y, note, _SMALL, colour=style.GREY)
    return drawing


def _looks(words: Iterable[str], own: Mapping[str, Look]) -> Mapping[str, Look]:
    """{words: look}, by the block's looks or by meaning; words of one look share an entry."""
    alike: dict[Look, list[str]] = {}
    for word in words:
        alike.setdefault(own.get(word) or style.meaning(word), []).append(word)
    return {", or ".join(several): look for look, several in alike.items()}
