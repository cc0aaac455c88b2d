"""A block of GPUs, dp wide, pp high and tp deep, in which the groups of one GPU light up."""

from collections.abc import Iterable

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import Point
from course_lib.theory.inputs.layout import Layout

# Where the front's top left corner stands, how large the front is, and how the depth runs.
_LEFT, _TOP, _WIDE, _HIGH = 61.0, 94.0, 345.0, 160.0
_BACK = (-60.0, -60.0)
_EDGE = 10  # from the block to its labels


def block_step(layout: Layout, lit: str, title: str, fact: tuple[str, str]) -> Drawing:
    """All GPUs of `layout`, dp wide, pp high and tp deep; of GPU 0 a group is lit.

    "one" lights the GPU itself, "tp", "pp" or "dp" a group of it, "groups" all three, "copy" one
    replica, "all" the block.
    `fact`: a number and what it is, below the block.
    """
    block = _Block(layout)
    number, what = fact
    sizes = f"tp {layout.tp} × pp {layout.pp} × dp {layout.dp}"
    sentence = f"{layout.world:,} GPUs as a block of {sizes}; lit: {lit}. {number} {what}."
    drawing = Drawing(_TOP + _HIGH + 74, sentence)
    drawing.write(0, 15, title, size=15, bold=True)
    faces, lit_faces = block.faces(), _lit(block, lit)
    for fill, sides in [(style.PALE, faces), *lit_faces]:
        for corners in sides:
            drawing.area(corners, fill)
    drawing.lines(block.lattice(), style.WHITE, 0.6)
    outlines = faces + [corners for _, sides in lit_faces for corners in sides]
    drawing.lines([[*corners, corners[0]] for corners in outlines], style.INK, style.OUTLINE_PT)
    if lit == "one":
        drawing.area(block.faces(2, 1)[0], style.INK)  # wide enough to be seen
    _labels(drawing, layout, lit)
    drawing.write(0, _TOP + _HIGH + 50, number, size=18, bold=True)
    drawing.write(0, _TOP + _HIGH + 67, what, size=style.TITLE_PT)
    return drawing


class _Block:
    """Corners and lines of the block; (dp, pp, tp) is counted from GPU 0, front top left."""

    def __init__(self, layout: Layout) -> None:
        self.wide, self.high, self.deep = layout.dp * layout.cp, layout.pp, layout.tp

    def point(self, right: float, down: float, back: float) -> Point:
        """Where a corner of the lattice lies on the page."""
        x = _LEFT + _WIDE * right / self.wide + _BACK[0] * back / self.deep
        return x, _TOP + _HIGH * down / self.high + _BACK[1] * back / self.deep

    def faces(self, wide: int = 0, high: int = 0, deep: int = 0) -> list[list[Point]]:
        """Front, top and left side of the part from GPU 0 on; where nothing is said, of all."""
        x, y, z = wide or self.wide, high or self.high, deep or self.deep
        ends = ((0, 0), (1, 0), (1, 1), (0, 1))
        return [
            [self.point(a * x, b * y, 0) for a, b in ends],
            [self.point(a * x, 0, b * z) for a, b in ends],
            [self.point(0, a * y, b * z) for a, b in ends],
        ]

    def lattice(self) -> Iterable[list[Point]]:
        """The lines between GPUs on the three sides that are seen."""
        for x in range(1, self.wide):
            yield [self.point(x, self.high, 0), self.point(x, 0, 0), self.point(x, 0, self.deep)]
        for y in range(1, self.high):
            yield [self.point(self.wide, y, 0), self.point(0, y, 0), self.point(0, y, self.deep)]
        for z in range(1, self.deep):
            yield [self.point(self.wide, 0, z), self.point(0, 0, z), self.point(0, self.high, z)]


def _lit(block: _Block, lit: str) -> list[tuple[str, list[list[Point]]]]:
    """What is seen of each group that is lit: its colour, and parts of the three sides."""
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
    """The three lengths of the block, those that are lit in bold."""
    lights = {"copy": ("tp", "pp"), "groups": ("tp", "pp", "dp"), "all": ("tp", "pp", "dp")}
    bright = lights.get(lit, (lit,))
    right, middle = _LEFT + _WIDE + _EDGE, _TOP + _HIGH / 2
    copies = "copies of the model" if layout.cp == 1 else "(copies × cp)"
    texts = [
        ("tp", right, _TOP + _BACK[1] / 2, f"{layout.tp} GPUs in a node", "left"),
        ("pp", right, middle, f"{layout.pp} stages", "left"),
        ("dp", _LEFT + _WIDE / 2, _TOP + _HIGH + 18, f"{layout.dp} {copies}", "center"),
    ]
    for axis, x, y, text, align in texts:
        colour = style.INK if axis in bright else style.GREY
        drawing.write(x, y, text, align=align, colour=colour, bold=axis in bright)
