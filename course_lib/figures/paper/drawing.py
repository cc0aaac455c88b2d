"""An SVG drawing: boxes, lines, areas, dots, text, arrows and a key."""

import html
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from course_lib.figures.paper import style
from course_lib.figures.paper.style import Look

# --- The width of every figure, and coordinates ---------------------------------------------------

WIDTH_PT = 520

Point = tuple[float, float]  # x, y
Box = tuple[float, float, float, float]  # left, top, width, height


# --- Small helpers for layout and wording that several figures share ------------------------------


def elide(count: int, most: int) -> list[int | None]:
    """0 … count-1 in at most `most` entries; None marks an elision."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def counted(number: int, noun: str) -> str:
    """ "1 update", "1,000 updates", "8 micro-batches"."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def width_pt(text: str, size: float) -> float:
    """An upper estimate of the width of `text` in DejaVu Sans, in points."""
    return 0.62 * size * len(text.replace(": ", ":"))  # ": " is one letter wide


def joined(boxes: Iterable[Box]) -> Iterator[Box]:
    """Merge consecutive boxes of equal height that touch."""
    last: Box | None = None
    for box in boxes:
        if last and last[1::2] == box[1::2] and abs(last[0] + last[2] - box[0]) < 0.3:
            last = (last[0], last[1], box[0] + box[2] - last[0], last[3])
        else:
            if last:
                yield last
            last = box
    if last:
        yield last


# --- The opening tag of a figure's SVG, and the colours of the page's theme -----------------------

_FONTS = "&#39;DejaVu Sans&#39;, Verdana, sans-serif"

# The page's colours as variables of JupyterLab's theme; other pages show the plain colours.
_VARIABLES = {
    "i": ("content-font-color1", style.INK),
    "g": ("content-font-color2", style.GREY),
    "p": ("layout-color2", style.PALE),
    "w": ("layout-color0", style.WHITE),
}
_NAMES = {colour.lower(): f"var(--{name})" for name, (_, colour) in _VARIABLES.items()}
_NAMES[style.WARNING_TEXT.lower()] = "var(--r)"
_PAGE_COLOUR = re.compile("|".join(_NAMES), re.IGNORECASE)
# Mixed with the text colour, which is dark in a light theme and light in a dark one.
_WARNING = f"color-mix(in srgb,{style.VERMILION} 75%,var(--i))"
_THEME = ";".join(
    [f"--{name}:var(--jp-{jp},{colour})" for name, (jp, colour) in _VARIABLES.items()]
    + [f"--r:{_WARNING}"]
)


def _opening(width: float, height: float, label: str, in_page: bool = True) -> str:
    """The `<svg>` tag of a figure of this size in points, with `label` for screen readers.

    Padding is added around it. `in_page`: use the page's colours, and scale down on a narrow page;
    otherwise on white.
    """
    pad = style.PADDING_PT
    wide, high = f"{width + 2 * pad:g}", f"{height + 2 * pad:g}"
    look = f"font-family:{_FONTS};stroke-linejoin:round;stroke-linecap:butt"
    if in_page:
        look = f"{_THEME};display:block;max-width:100%;height:auto;background:var(--w);{look}"
    ground = f'<rect x="-{pad}" y="-{pad}" width="{wide}" height="{high}" fill="{style.WHITE}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(label)}" '
        f'width="{wide}pt" height="{high}pt" viewBox="-{pad} -{pad} {wide} {high}" '
        f'style="{look}">{"" if in_page else ground}'
    )


# --- The drawing: boxes, lines, areas, dots and text ----------------------------------------------

# Lines of each hatch inside a square of 6 points.
_HATCHES = {"/": "M0 6L6 0", "\\": "M0 0L6 6", "-": "M0 3H6", "x": "M0 6L6 0M0 0L6 6"}
_ANCHOR = {"left": "start", "center": "middle", "right": "end"}

_numbers = itertools.count()


class Shapes(NamedTuple):
    """Shapes of one look, drawn in one call; the type of `places` depends on `kind`."""

    kind: str  # "box", "line", "area" or "dot"
    places: Sequence[Any]
    fill: str
    edge: str = "none"
    width: float = style.OUTLINE_PT
    hatch: str | None = None
    dashed: bool = False

    def path(self) -> str:
        """All shapes as one SVG path, which is cheap even for many of them."""
        if self.kind == "box":
            return "".join(
                f"M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h{-w:.1f}z" for x, y, w, h in self.places
            )
        if self.kind == "dot":
            return "".join(
                f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z"
                for x, y, r in self.places
            )
        end = "z" if self.kind == "area" else ""
        return "".join(
            f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in points)}{end}" for points in self.places
        )


class Words(NamedTuple):
    """One text, with the position of its baseline and its look."""

    x: float
    y: float
    text: str
    size: float
    align: str
    colour: str
    bold: bool


class Drawing:
    """A figure of WIDTH_PT × `height_pt` points; x runs right and y runs down from the top left.

    Padding around it keeps text at 0 away from the edge. `sentence` describes the figure in words,
    with its numbers, for readers who cannot see it.
    """

    def __init__(self, height_pt: float, sentence: str) -> None:
        self.sentence, self.height_pt = sentence, height_pt
        self.marks: list[Shapes | Words] = []  # in the order in which they are drawn

    def boxes(
        self,
        boxes: Iterable[Box],
        fill: str = style.SKY,
        hatch: str | None = None,
        edge: str = style.INK,
        dashed: bool = False,
    ) -> None:
        """Draw rectangles of one look; `hatch` is "/", "\\\\", "-", "x" or none."""
        self._draw(Shapes("box", list(boxes), fill, edge, hatch=hatch, dashed=dashed))

    def line(
        self,
        points: Sequence[Point],
        colour: str = style.INK,
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        """Draw a line through `points`."""
        self.lines([points], colour, width, dashed)

    def lines(
        self,
        lines: Iterable[Sequence[Point]],
        colour: str = style.INK,
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        """Draw several lines of one look."""
        places = [list(points) for points in lines]
        self._draw(Shapes("line", places, "none", colour, width, dashed=dashed))

    def area(self, points: Sequence[Point], fill: str) -> None:
        """Fill the area that `points` enclose."""
        self._draw(Shapes("area", [list(points)], fill))

    def dot(self, x: float, y: float, colour: str = style.VERMILION, radius: float = 5) -> None:
        """Draw a filled circle."""
        self._draw(Shapes("dot", [(x, y, radius)], colour, style.INK))

    def write(
        self,
        x: float,
        y: float,
        text: str,
        size: float = style.TEXT_PT,
        align: str = "left",
        colour: str = style.INK,
        bold: bool = False,
    ) -> None:
        """Write `text` with its baseline at `y`; `align` "left", "center" or "right" of `x`."""
        self.marks.append(Words(x, y, text, size, align, colour, bold))

    def write_all(
        self,
        texts: Iterable[tuple[float, float, str]],
        size: float = style.TEXT_PT,
        align: str = "left",
        colour: str = style.INK,
        bold: bool = False,
    ) -> None:
        """Write several texts (x, baseline, text) of one look."""
        self.marks += [Words(x, y, text, size, align, colour, bold) for x, y, text in texts]

    def title(self, text: str) -> None:
        """Write the heading: bold, at the top left."""
        self.write(0, 13, text, style.TITLE_PT, bold=True)

    def to_svg(self, themed: bool = True) -> str:
        """SVG to embed in HTML, in the page's colours; if not `themed`, a standalone SVG."""
        ids = _Hatches(f"d{next(_numbers)}-", {})
        drawn = "".join(
            _words(list(marks)) if look else "".join(_shapes(mark, ids) for mark in marks)
            for look, marks in itertools.groupby(self.marks, _look)
        )
        opening = _opening(WIDTH_PT, self.height_pt, self.sentence, themed)
        body = f"<defs>{ids.patterns()}</defs>{drawn}"
        if themed:  # replace our ink, greys and background by the page's
            body = _PAGE_COLOUR.sub(lambda colour: _NAMES[colour[0].lower()], body)
        return f"{opening}{body}</svg>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """The outputs stored in a notebook: themed SVG, standalone SVG, and the sentence."""
        return {
            "text/html": self.to_svg(),
            "image/svg+xml": self.to_svg(themed=False),
            "text/plain": self.sentence,
        }

    def _draw(self, shapes: Shapes) -> None:
        if shapes.places:
            hatch = shapes.hatch[0] if shapes.hatch else None
            self.marks.append(shapes._replace(hatch=hatch))


class _Hatches(NamedTuple):
    """The hatch patterns of one SVG, with ids unique to it, so that figures never share them."""

    prefix: str
    names: dict[tuple[str, str], str]  # by hatch and the colour of its lines

    def name(self, hatch: str, ink: str) -> str:
        return self.names.setdefault((hatch, ink), f"{self.prefix}h{len(self.names)}")

    def patterns(self) -> str:
        return "".join(
            f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
            f'<path d="{_HATCHES[hatch]}" stroke="{ink}" stroke-width="0.5"/></pattern>'
            for (hatch, ink), name in self.names.items()
        )


def _look(mark: Shapes | Words) -> tuple[object, ...]:
    """The attributes that texts of one SVG group share; empty for shapes."""
    return mark[3:] if isinstance(mark, Words) else ()


def _shapes(mark: Any, ids: _Hatches) -> str:
    path, wide = mark.path(), max(1.0, mark.width)
    dashes = f' stroke-dasharray="{3 * wide:g} {1.3 * wide:g}"' if mark.dashed else ""
    outline = f' stroke="{mark.edge}" stroke-width="{mark.width:g}"' * (mark.edge != "none")
    drawn = f'<path d="{path}" fill="{mark.fill}"{outline}{dashes}/>'
    if mark.hatch:
        drawn += f'<path d="{path}" fill="url(#{ids.name(mark.hatch, style.on(mark.fill))})"/>'
    return drawn


def _words(marks: Sequence[Any]) -> str:
    first = marks[0]
    weight = ' font-weight="bold"' if first.bold else ""
    texts = "".join(
        f'<text x="{mark.x:.1f}" y="{mark.y:.1f}">{html.escape(mark.text)}</text>' for mark in marks
    )
    return (
        f'<g text-anchor="{_ANCHOR[first.align]}" font-size="{first.size:g}" '
        f'fill="{first.colour}"{weight}>{texts}</g>'
    )


# --- Arrows ---------------------------------------------------------------------------------------

_HEAD, _SPREAD = 5.0, 0.45  # length in points, half of the angle in radians


def arrow(drawing: Drawing, start: Point, end: Point, width: float = 1) -> None:
    """Draw a straight line with a head at `end`."""
    for points in arrow_lines(start, end):
        drawing.line(points, width=width)


def arrow_lines(start: Point, end: Point) -> list[list[Point]]:
    """The polylines of an arrow, shaft and head, to draw many arrows in one call."""
    back = math.atan2(start[1] - end[1], start[0] - end[0])
    sides = [
        (end[0] + _HEAD * math.cos(back + turn), end[1] + _HEAD * math.sin(back + turn))
        for turn in (_SPREAD, -_SPREAD)
    ]
    return [[start, end], [sides[0], end, sides[1]]]


# --- key ------------------------------------------------------------------------------------------
# A key (legend): small boxes with names, for parts without room for a label.


_LINE, _SIZE = 16.0, 9.0


def key_height(fills: Mapping[str, str | Look], left: float) -> float:
    """The height of `key` in points."""
    return _places(fills, left)[-1][1] + _LINE + 4 if fills else 0.0


def key(drawing: Drawing, fills: Mapping[str, str | Look], left: float, top: float) -> None:
    """Draw a coloured box and a name for each entry, wrapped into lines from `left` on."""
    for (name, fill), (x, y) in zip(fills.items(), _places(fills, left), strict=True):
        look, hatch = (fill, None) if isinstance(fill, str) else fill
        drawing.boxes([(x, top + y, 11, 11)], look, hatch, dashed=look == style.WHITE)
        drawing.write(x + 16, top + y + 9.5, name, size=_SIZE)


def _places(names: Mapping[str, str | Look], left: float) -> list[tuple[float, float]]:
    """The (x, y) of each box; y is relative to the key's top."""
    places: list[tuple[float, float]] = []
    x, y = left, 0.0
    for name in names:
        width = width_pt(name, _SIZE) + 30
        if places and x + width - 14 > WIDTH_PT:
            x, y = left, y + _LINE
        places.append((x, y))
        x += width
    return places
