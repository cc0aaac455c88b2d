"""Figures of chapter 0, beside those of the library."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Protocol

from course_lib.figures import *  # noqa: F403
from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.key import key
from course_lib.figures.paper.picture import Box, Point

# Column and row of each chapter, so that lines run downwards and cross as little as possible.
_PLACES: Mapping[int, tuple[int, int]] = {
    **{0: (0, 0), 1: (1, 0), 3: (3, 0)},
    **{2: (0, 1), 5: (2, 1)},
    **{6: (2, 2), 4: (3, 2)},
    **{7: (0, 3), 11: (2, 3), 10: (3, 3)},
    **{8: (0, 4), 14: (1, 4), 12: (3, 4)},
    **{9: (0, 5), 13: (2, 5)},
    **{15: (0, 6), 16: (1, 6), 17: (2, 6)},
}
_WIDTH, _HEIGHT, _COLUMN, _ROW, _LEFT, _TOP = 112.0, 50.0, 134.0, 74.0, 3.0, 30.0
_SQUARE = 6.0  # of a part
_LETTERS = 16  # of a title, in a line
_TOPICS = {
    "one GPU": ((0, 1, 2, 3, 4, 5), style.WHITE),
    "messages": ((6, 14), style.MESSAGES),
    "copies of the model": ((7, 8, 9), style.SKY),
    "pieces of the model": ((10, 11, 12), style.ORANGE),
    "plans and clusters": ((13, 15, 16, 17), style.PALE),
}


class Chapter(Protocol):
    """As `outline.Entry`."""

    @property
    def number(self) -> int: ...
    @property
    def title(self) -> str: ...


class Part(Protocol):
    """As `mine.parts.Part`: `build` is "6.11"."""

    @property
    def build(self) -> str: ...


def course_map(
    chapters: Iterable[Chapter], steps: Sequence[tuple[int, int]], parts: Iterable[Part]
) -> Drawing:
    """A box for each chapter, with a square for each part that is built in it.

    `steps` are pairs (from, to).
    """
    titles = {one.number: one.title for one in chapters}
    builds = Counter(int(part.build.split(".")[0]) for part in parts)
    needs = {number: [str(start) for start, end in steps if end == number] for number in titles}
    told = "; ".join(
        f"{number} {name}" + (f", after {' and '.join(its)}" if (its := needs[number]) else "")
        for number, name in titles.items()
    )
    words = f"{len(titles)} chapters with {sum(builds.values())} parts to build. {told}."
    bottom = _TOP + _ROW * (1 + max(row for _, row in _PLACES.values())) - 14
    drawing = Drawing(bottom + 40, words)
    drawing.title("The chapters, with arrows from each of them to those that need it")
    for start, end in steps:
        _arrow(drawing, _corner(start), _corner(end))
    for number, name in titles.items():
        _box(drawing, number, name, builds[number])
    squares = {"one part of a training library that you build": style.BLUE}
    key(drawing, {topic: fill for topic, (_, fill) in _TOPICS.items()} | squares, _LEFT, bottom)
    return drawing


def _corner(number: int) -> Point:
    column, row = _PLACES[number]
    return _LEFT + column * _COLUMN, _TOP + row * _ROW


def _arrow(drawing: Drawing, start: Point, end: Point) -> None:
    """From box to box: sideways in a row, else from the foot of one to the head of the other."""
    (x, y), (to_x, to_y) = start, end
    shift = 18 * (to_x > x) - 18 * (to_x < x)  # arrows to one box end apart
    first, last = (x + _WIDTH / 2 + shift, y + _HEIGHT), (to_x + _WIDTH / 2 - shift, to_y)
    if y == to_y:
        first, last = (x + _WIDTH, y + _HEIGHT / 2), (to_x, y + _HEIGHT / 2)
    arrow(drawing, first, last, width=1.4)


def _box(drawing: Drawing, number: int, name: str, builds: int) -> None:
    x, y = _corner(number)
    fill = next(colour for chapters, colour in _TOPICS.values() if number in chapters)
    drawing.boxes([(x, y, _WIDTH, _HEIGHT)], fill)
    ink = style.on(fill)
    drawing.write(x + 6, y + 17, str(number), colour=ink, bold=True)
    for row, line in enumerate(wrap(name, _LETTERS)):
        drawing.write(x + 25, y + 17 + 13 * row, line, size=9, colour=ink)
    squares: list[Box] = [
        (x + 6 + 9 * place, y + _HEIGHT - 11, _SQUARE, _SQUARE) for place in range(builds)
    ]
    drawing.boxes(squares, style.BLUE)
