"""Figures of chapter 0, in addition to those of the library."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap

from course_lib.figures import *  # noqa: F403
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Box, Drawing, Point, arrow, key
from course_lib.mine import Part
from course_lib.outline import Entry
from course_lib.theory.inputs.layout import Layout

# Column and row of each chapter, chosen so that arrows run downwards and rarely cross.
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
_SQUARE = 6.0  # side of the square for one part
_LETTERS = 16  # of a chapter's title, per line
_TOPICS = {
    "one GPU": ((0, 1, 2, 3, 4, 5), style.WHITE),
    "messages": ((6, 14), style.MESSAGES),
    "copies of the model": ((7, 8, 9), style.SKY),
    "pieces of the model": ((10, 11, 12), style.ORANGE),
    "plans and clusters": ((13, 15, 16, 17), style.PALE),
}


def course_map(
    chapters: Iterable[Entry], steps: Sequence[tuple[int, int]], parts: Iterable[Part]
) -> Drawing:
    """Draw a box for each chapter, with a square for each part that is built in it.

    `steps` are pairs (from, to): chapter numbers joined by an arrow.
    """
    titles = {entry.number: entry.title for entry in chapters}
    builds = Counter(int(part.build.split(".")[0]) for part in parts)
    needs = {number: [str(start) for start, end in steps if end == number] for number in titles}
    listed = "; ".join(
        f"{number} {name}" + (f", after {' and '.join(first)}" if (first := needs[number]) else "")
        for number, name in titles.items()
    )
    words = f"{len(titles)} chapters with {sum(builds.values())} parts to build. {listed}."
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
    """Draw an arrow from box to box: sideways within a row, otherwise from bottom to top edge."""
    (x, y), (to_x, to_y) = start, end
    shift = 18 * (to_x > x) - 18 * (to_x < x)  # keep the ends of arrows to one box apart
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
        (x + 6 + 9 * index, y + _HEIGHT - 11, _SQUARE, _SQUARE) for index in range(builds)
    ]
    drawing.boxes(squares, style.BLUE)


# --- A block of GPUs, dp wide, pp high and tp deep, that highlights the groups of one GPU ---------

# The front's top left corner, the size of the front, and the vector along the depth.
_BLOCK_LEFT, _BLOCK_TOP, _WIDE, _HIGH = 61.0, 94.0, 345.0, 160.0
_BACK = (-60.0, -60.0)
_EDGE = 10  # distance from the block to its labels


def block_step(layout: Layout, lit: str, title: str, fact: tuple[str, str]) -> Drawing:
    """Draw all GPUs of `layout`, dp wide, pp high and tp deep, with part of the block lit.

    `lit` is "one" for GPU 0 itself, "tp", "pp" or "dp" for one of its groups, "groups" for all
    three, "copy" for one replica, "all" for the block.
    `fact` is a number and what it means, written below the block.
    """
    block = _Block(layout)
    number, what = fact
    sizes = f"tp {layout.tp} × pp {layout.pp} × dp {layout.dp}"
    sentence = f"{layout.world:,} GPUs as a block of {sizes}; lit: {lit}. {number} {what}."
    drawing = Drawing(_BLOCK_TOP + _HIGH + 74, sentence)
    drawing.write(0, 15, title, size=15, bold=True)
    faces, lit_faces = block.faces(), _lit(block, lit)
    for fill, sides in [(style.PALE, faces), *lit_faces]:
        for corners in sides:
            drawing.area(corners, fill)
    drawing.lines(block.lattice(), style.WHITE, 0.6)
    outlines = faces + [corners for _, sides in lit_faces for corners in sides]
    drawing.lines([[*corners, corners[0]] for corners in outlines], style.INK, style.OUTLINE_PT)
    if lit == "one":
        drawing.area(block.faces(2, 1)[0], style.INK)  # wide enough to be visible
    _labels(drawing, layout, lit)
    drawing.write(0, _BLOCK_TOP + _HIGH + 50, number, size=18, bold=True)
    drawing.write(0, _BLOCK_TOP + _HIGH + 67, what, size=style.TITLE_PT)
    return drawing


class _Block:
    """Corners and lines of the block; (dp, pp, tp) coordinates start at GPU 0, front top left."""

    def __init__(self, layout: Layout) -> None:
        self.wide, self.high, self.deep = layout.dp * layout.cp, layout.pp, layout.tp

    def point(self, right: float, down: float, back: float) -> Point:
        """Return the position of a lattice point on the page."""
        x = _BLOCK_LEFT + _WIDE * right / self.wide + _BACK[0] * back / self.deep
        return x, _BLOCK_TOP + _HIGH * down / self.high + _BACK[1] * back / self.deep

    def faces(self, wide: int = 0, high: int = 0, deep: int = 0) -> list[list[Point]]:
        """Front, top and left side of a sub-block that starts at GPU 0; size 0 means full size."""
        x, y, z = wide or self.wide, high or self.high, deep or self.deep
        corners = ((0, 0), (1, 0), (1, 1), (0, 1))
        return [
            [self.point(a * x, b * y, 0) for a, b in corners],
            [self.point(a * x, 0, b * z) for a, b in corners],
            [self.point(0, a * y, b * z) for a, b in corners],
        ]

    def lattice(self) -> Iterable[list[Point]]:
        """Yield the lines between GPUs on the three visible sides."""
        for x in range(1, self.wide):
            yield [self.point(x, self.high, 0), self.point(x, 0, 0), self.point(x, 0, self.deep)]
        for y in range(1, self.high):
            yield [self.point(self.wide, y, 0), self.point(0, y, 0), self.point(0, y, self.deep)]
        for z in range(1, self.deep):
            yield [self.point(self.wide, 0, z), self.point(0, 0, z), self.point(0, self.high, z)]


def _lit(block: _Block, lit: str) -> list[tuple[str, list[list[Point]]]]:
    """Colour of each lit group, and its areas on the three visible sides."""
    sides = {
        "tp": block.faces(wide=1, high=1),
        "pp": block.faces(wide=1, deep=1),
        "dp": block.faces(high=1, deep=1),
        "copy": block.faces(wide=1),
        "all": block.faces(),
    }
    fills = style.AXES | {"copy": style.WEIGHTS, "all": style.COMPUTING}
    shown = {"one": (), "groups": ("dp", "pp", "tp")}.get(lit, (lit,))
    return [(fills[name], sides[name]) for name in shown]


def _labels(drawing: Drawing, layout: Layout, lit: str) -> None:
    """Label the three edges of the block, in bold where they belong to what is lit."""
    lights = {"copy": ("tp", "pp"), "groups": ("tp", "pp", "dp"), "all": ("tp", "pp", "dp")}
    bright = lights.get(lit, (lit,))
    right, middle = _BLOCK_LEFT + _WIDE + _EDGE, _BLOCK_TOP + _HIGH / 2
    copies = "copies of the model" if layout.cp == 1 else "(copies × cp)"
    texts = [
        ("tp", right, _BLOCK_TOP + _BACK[1] / 2, f"{layout.tp} GPUs in a node", "left"),
        ("pp", right, middle, f"{layout.pp} stages", "left"),
        ("dp", _BLOCK_LEFT + _WIDE / 2, _BLOCK_TOP + _HIGH + 18, f"{layout.dp} {copies}", "center"),
    ]
    for axis, x, y, text, align in texts:
        colour = style.INK if axis in bright else style.GREY
        drawing.write(x, y, text, align=align, colour=colour, bold=axis in bright)
