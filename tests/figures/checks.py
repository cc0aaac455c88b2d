"""What must hold of every figure: nothing cut, no words on others, every word readable."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font, LoadFlags
from matplotlib.path import Path

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, Shapes, Words

LEAST_CONTRAST = 4.5
# What JupyterLab's themes put in place of the page's colours.
LIGHT = {style.INK: "#212121", style.GREY: "#757575", style.PALE: "#EEEEEE"}
DARK = {**style.DARK, style.WARNING_TEXT: "#E08640"}
# "1.26e+03", but neither "e-9" inside of a word nor "2e" of a model's name.
_SCIENTIFIC = re.compile(r"\d[eE][+-]\d")


class Bbox(NamedTuple):
    """From the bottom left to the top right corner, in points."""

    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def width(self) -> float:
        return self.x1 - self.x0

    @property
    def height(self) -> float:
        return self.y1 - self.y0

    def padded(self, by: float) -> "Bbox":
        return Bbox(self.x0 - by, self.y0 - by, self.x1 + by, self.y1 + by)

    def overlaps(self, other: "Bbox") -> bool:
        across = self.x0 <= other.x1 and other.x0 <= self.x1
        return across and self.y0 <= other.y1 and other.y0 <= self.y1

    def contains(self, x: float, y: float) -> bool:
        return self.x0 <= x <= self.x1 and self.y0 <= y <= self.y1


class Outline(NamedTuple):
    """One place of what was drawn at once: its corners, and the box around them."""

    shapes: Shapes
    corners: list[tuple[float, float]]
    extent: Bbox

    def contains(self, x: float, y: float) -> bool:
        inside = self.extent.contains(x, y)
        return inside and (self.shapes.kind == "box" or Path(self.corners).contains_point((x, y)))


@dataclass(frozen=True)
class Drawn:
    """A figure, its SVG, and where its marks are: in points, up from the bottom left."""

    picture: Drawing
    svg: str

    @cached_property
    def page(self) -> Bbox:
        return Bbox(0, 0, WIDTH_PT, self.picture.height_pt)

    @cached_property
    def labels(self) -> list[Words]:
        return [mark for mark in self.picture.marks if isinstance(mark, Words)]

    @cached_property
    def shapes(self) -> list[Shapes]:
        return [mark for mark in self.picture.marks if isinstance(mark, Shapes)]

    @cached_property
    def extents(self) -> list[tuple[str, Bbox]]:
        """The words and where they stand."""
        return [(one.text, self._extent(one)) for one in self.labels]

    @cached_property
    def outlines(self) -> list[Outline]:
        """Every shape and each of its places."""
        return [self._outline(one, place) for one in self.shapes for place in one.places]

    @cached_property
    def filled(self) -> list[Outline]:
        """What is filled, in the order in which it is drawn."""
        return [one for one in self.outlines if one.shapes.fill != "none"]

    @cached_property
    def boxes(self) -> list[tuple[str, Bbox]]:
        """The filled boxes among them: colour and place."""
        return [(one.shapes.fill, one.extent) for one in self.filled if one.shapes.kind == "box"]

    @cached_property
    def grounds(self) -> list[tuple[str, bool]]:
        """For each label the colour below its middle, and whether it is hatched."""
        return [
            self._ground((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for _, box in self.extents
        ]

    def _ground(self, x: float, y: float) -> tuple[str, bool]:
        below = (one.shapes for one in reversed(self.filled) if one.contains(x, y))
        top = next(below, None)
        return (top.fill, bool(top.hatch)) if top else (style.WHITE, False)

    def _outline(self, shapes: Shapes, place: tuple[float, ...]) -> Outline:
        high, corners = self.picture.height_pt, place
        if shapes.kind == "box":
            x, y, width, height = place
            corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        if shapes.kind == "dot":
            x, y, radius = place
            corners = [
                (x + radius * math.cos(turn), y + radius * math.sin(turn)) for turn in range(24)
            ]
            corners += [(x - radius, y), (x + radius, y), (x, y - radius), (x, y + radius)]
        corners = [(x, high - y) for x, y in corners]
        across, up = zip(*corners, strict=True)
        return Outline(shapes, corners, Bbox(min(across), min(up), max(across), max(up)))

    def _extent(self, words: Words) -> Bbox:
        wide = _width(words.text, words.size, words.bold)
        left = words.x - wide * {"left": 0, "center": 0.5, "right": 1}[words.align]
        base = self.picture.height_pt - words.y
        return Bbox(left, base - _BELOW * words.size, left + wide, base + _ABOVE * words.size)


_ABOVE, _BELOW = 0.76, 0.21  # of an "l" and a "p" of DejaVu Sans, for one point of size


@cache
def _width(text: str, size: float, bold: bool) -> float:
    font = _font(bold)
    font.set_size(size, 72)
    font.set_text(text, 0.0, flags=LoadFlags.NO_HINTING)
    return font.get_width_height()[0] / 64


@cache
def _font(bold: bool) -> FT2Font:
    return FT2Font(
        findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal"))
    )


def draw(picture: Drawing) -> Drawn:
    """A figure, and what it has drawn."""
    return Drawn(picture, picture.to_svg())


def faults(drawn: Drawn) -> list[str]:
    """Everything that is wrong with the figure, in words."""
    checks = (cut, overlapping, scientific, unreadable, hatched, running_over)
    return [fault for check in checks for fault in check(drawn)]


def cut(drawn: Drawn) -> Iterator[str]:
    """What reaches beyond the figure."""
    page = drawn.page.padded(0.5)
    shapes = [(f"{one.shapes.kind} in {one.shapes.fill}", one.extent) for one in drawn.outlines]
    for name, box in [*drawn.extents, *shapes]:
        if box.x0 < page.x0 or box.x1 > page.x1 or box.y0 < page.y0 or box.y1 > page.y1:
            yield f"{name!r} is cut"


def overlapping(drawn: Drawn) -> Iterator[str]:
    """Words on other words."""
    boxes = [(text, box.padded(-1.5)) for text, box in drawn.extents]
    for place, (text, box) in enumerate(boxes):
        for other, other_box in boxes[:place]:
            if box.overlaps(other_box):
                yield f"{text!r} lies on {other!r}"


def scientific(drawn: Drawn) -> Iterator[str]:
    """Numbers such as 1.26e+03, in the figure or in its sentence."""
    for text in [*(text for text, _ in drawn.extents), drawn.picture.sentence]:
        if _SCIENTIFIC.search(text):
            yield f"{text!r} holds a number in scientific notation"


def unreadable(drawn: Drawn) -> Iterator[str]:
    """Words with too little contrast, on the page or on a box, in the light or the dark theme."""
    for label, (ground, _) in zip(drawn.labels, drawn.grounds, strict=True):
        for theme, colours in (("light", LIGHT), ("dark", DARK)):
            shown = [colours.get(colour, colour) for colour in (label.colour, ground)]
            if (ratio := contrast(*shown)) < LEAST_CONTRAST:
                words = f"{label.text!r}, {label.colour} on {ground}"
                yield f"{words}: {ratio:.2f} to 1 in the {theme} theme"


def hatched(drawn: Drawn) -> Iterator[str]:
    """Thin words on a hatch."""
    for label, (fill, lines) in zip(drawn.labels, drawn.grounds, strict=True):
        if lines and not label.bold:
            yield f"{label.text!r} stands thin on hatched {fill}"


def running_over(drawn: Drawn) -> Iterator[str]:
    """Words that cross the edge of a filled box."""
    for text, box in drawn.extents:
        words = Bbox(box.x0 + 1, box.y0 + 3, box.x1 - 1, box.y1 - 3)
        for fill, filled in drawn.boxes:
            corners = ((words.x0, words.y0), (words.x1, words.y1))
            if words.overlaps(filled) and not all(filled.contains(*one) for one in corners):
                yield f"{text!r} runs over the edge of a box in {fill}"


def beside(drawn: Drawn, words: Bbox) -> list[str]:
    """The colour of the box around the words, or of the nearest within 30 points, on their line."""
    y = (words.y0 + words.y1) / 2
    around = [
        fill
        for fill, box in drawn.boxes
        if box.x0 <= words.x0 and words.x1 <= box.x1 and box.y0 <= y <= box.y1
    ]
    if around and around[-1] not in (style.WHITE, style.PALE):
        return around[-1:]
    apart = [
        (max(words.x0 - box.x1, box.x0 - words.x1), fill)
        for fill, box in drawn.boxes
        if box.y0 <= y <= box.y1 and fill != style.WHITE
    ]
    return [fill for distance, fill in sorted(apart)[:1] if 0 <= distance < 30]


@cache
def contrast(one: str, other: str) -> float:
    """WCAG's ratio of contrast, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
