"""A matplotlib figure laid out in points, without axes: quicker to draw than axes with ticks."""

import io
from collections.abc import Iterable, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from course_lib.figures.paper import style, svg
from course_lib.figures.paper.label import Label
from course_lib.figures.paper.picture import WIDTH_PT, Box, Picture, Point

_POINTS_PER_INCH = 72
_PNG_DPI = 144  # sharp on high-resolution screens; shown at the size of the SVG
_CORNERS = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]


class Sheet(Figure, Picture):
    """A Picture that is a matplotlib figure, so that axes can be added to it."""

    def __init__(self, height_pt: float, sentence: str) -> None:
        super().__init__(
            figsize=(WIDTH_PT / _POINTS_PER_INCH, height_pt / _POINTS_PER_INCH),
            dpi=_POINTS_PER_INCH,
            facecolor=style.WHITE,
        )
        self.sentence, self.height_pt = sentence, height_pt
        down = Affine2D().scale(1, -1).translate(0, height_pt).scale(1 / _POINTS_PER_INCH)
        self._points = down + self.dpi_scale_trans

    def boxes(
        self,
        boxes: Iterable[Box],
        fill: str = style.SKY,
        hatch: str | None = None,
        edge: str = style.INK,
        dashed: bool = False,
    ) -> None:
        """Draw rectangles of one look, as one artist: its cost does not grow with their number."""
        corners: list[tuple[float, float]] = []
        for x, y, width, height in boxes:
            right, bottom = x + width, y + height
            corners += [(x, y), (right, y), (right, bottom), (x, bottom), (x, y)]
        if corners:
            path = Path(corners, _CORNERS * (len(corners) // len(_CORNERS)))
            self._add(path, fill, edge, hatch, style.OUTLINE_PT, "--" if dashed else "-")

    def line(
        self,
        points: Sequence[Point],
        colour: str = style.INK,
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        """Draw a line through `points`."""
        self._add(Path(points), "none", colour, None, width, "--" if dashed else "-")

    def area(self, points: Sequence[Point], fill: str, hatch: str | None = None) -> None:
        """Fill the area that `points` enclose."""
        corners = [*points, points[0]]
        codes = [Path.MOVETO, *[Path.LINETO] * (len(points) - 1), Path.CLOSEPOLY]
        self._add(Path(corners, codes), fill, style.INK, hatch, style.OUTLINE_PT, "-")

    def dot(self, x: float, y: float, colour: str = style.VERMILION, radius: float = 5) -> None:
        """Draw a filled circle."""
        self._add(Path.circle((x, y), radius), colour, style.INK, None, style.OUTLINE_PT, "-")

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
        # parse_math: a "$" is a dollar and not the start of a formula.
        label = Label(
            x,
            y,
            text,
            fontsize=size,
            color=colour,
            ha=align,
            weight="bold" if bold else "normal",
            parse_math=False,
            transform=self._points,
        )
        self.add_artist(label)

    def to_svg(self) -> str:
        """The figure as SVG text that can stand inside HTML."""
        return svg.render(self, self.sentence)

    def to_png(self) -> bytes:
        """The figure as a PNG picture."""
        buffer = io.BytesIO()
        page = self.bbox_inches.padded(style.PADDING_PT / _POINTS_PER_INCH)
        FigureCanvasAgg(self).print_figure(buffer, format="png", dpi=_PNG_DPI, bbox_inches=page)
        return buffer.getvalue()

    def _add(
        self, path: Path, fill: str, edge: str, hatch: str | None, width: float, dashes: str
    ) -> None:
        if hatch and edge == style.INK:  # matplotlib draws hatches in the colour of the edge
            edge = style.on(fill)
        patch = PathPatch(
            path,
            facecolor=fill,
            edgecolor=edge,
            hatch=hatch,
            linewidth=width,
            linestyle=dashes,
            transform=self._points,
        )
        self.add_artist(patch)
