"""A figure that writes its own SVG: boxes, lines, areas, dots and words."""

import html
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from course_lib.figures.paper import style, svg
from course_lib.figures.paper.picture import WIDTH_PT, Box, Point

# Lines of each hatch inside a square of 6 points.
_HATCHES = {
    "/": "M0 6L6 0",
    "\\": "M0 0L6 6",
    "-": "M0 3H6",
    "x": "M0 6L6 0M0 0L6 6",
}
_ANCHOR = {"left": "start", "center": "middle", "right": "end"}

_numbers = itertools.count()


class Shapes(NamedTuple):
    """What was drawn at once and looks alike; `places` are what `kind` needs to be drawn."""

    kind: str  # "box", "line", "area" or "dot"
    places: Sequence[Any]
    fill: str
    edge: str = "none"
    width: float = style.OUTLINE_PT
    hatch: str | None = None
    dashed: bool = False

    def path(self) -> str:
        """All places as one SVG path: its cost hardly grows with their number."""
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
    """One text: where its baseline is, and its look."""

    x: float
    y: float
    text: str
    size: float
    align: str
    colour: str
    bold: bool


class Drawing:
    """A figure of WIDTH_PT × `height_pt` points; x runs right and y runs down from the top left.

    Around it lies a padding, so that a word at 0 does not touch the edge.
    `sentence` says in words, with its numbers, what the figure shows.
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

    def area(
        self, points: Sequence[Point], fill: str, hatch: str | None = None, edge: str = "none"
    ) -> None:
        """Fill the area that `points` enclose."""
        self._draw(Shapes("area", [list(points)], fill, edge, hatch=hatch))

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
        """SVG text to stand inside HTML, in the page's colours; not `themed`: to stand alone."""
        ids = _Hatches(f"d{next(_numbers)}-", {})
        drawn = "".join(
            _words(list(marks)) if look else "".join(_shapes(mark, ids) for mark in marks)
            for look, marks in itertools.groupby(self.marks, _look)
        )
        opening = svg.opening(WIDTH_PT, self.height_pt, self.sentence, themed)
        body = f"<defs>{ids.patterns()}</defs>{drawn}"
        return f"{opening}{svg.themed(body) if themed else body}</svg>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """What a notebook stores: SVG in the page, SVG as a picture, and words."""
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
    """The patterns of one SVG: ids are of their own, so that figures in one page share none."""

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
    """What texts have to share to stand in one group; nothing for shapes."""
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
