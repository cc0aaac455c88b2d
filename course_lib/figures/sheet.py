"""A matplotlib figure laid out in points, without axes: quicker to draw than axes with ticks."""

import base64
import io
from collections.abc import Iterable, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from course_lib.figures import style, svg
from course_lib.figures.label import Label

WIDTH_PT = 520
_POINTS_PER_INCH = 72
_PNG_DPI = 144  # sharp on high-resolution screens; shown at the size of the SVG
_CSS_PIXELS_PER_POINT = 96 / 72

Box = tuple[float, float, float, float]  # left, top, width, height
_CORNERS = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]


class Sheet(Figure):
    """A figure of WIDTH_PT × `height_pt` points; x runs right and y runs down from the top left.

    `sentence` says in words, with its numbers, what the figure shows.
    """

    def __init__(self, height_pt: float, sentence: str) -> None:
        super().__init__(
            figsize=(WIDTH_PT / _POINTS_PER_INCH, height_pt / _POINTS_PER_INCH),
            dpi=_POINTS_PER_INCH,
            facecolor=style.WHITE,
        )
        self.sentence = sentence
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
        """Draw rectangles of one look. They are one artist: its cost does not grow with them."""
        corners: list[tuple[float, float]] = []
        for x, y, width, height in boxes:
            right, bottom = x + width, y + height
            corners += [(x, y), (right, y), (right, bottom), (x, bottom), (x, y)]
        if corners:
            path = Path(corners, _CORNERS * (len(corners) // len(_CORNERS)))
            self._add(path, fill, edge, hatch, 0.8, "--" if dashed else "-")

    def line(
        self,
        points: Sequence[tuple[float, float]],
        colour: str = style.INK,
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        """Draw a line through `points`."""
        self._add(Path(points), "none", colour, None, width, "--" if dashed else "-")

    def area(
        self, points: Sequence[tuple[float, float]], fill: str, hatch: str | None = None
    ) -> None:
        """Fill the surface that `points` go round."""
        corners = [*points, points[0]]
        codes = [Path.MOVETO, *[Path.LINETO] * (len(points) - 1), Path.CLOSEPOLY]
        self._add(Path(corners, codes), fill, style.INK, hatch, 0.8, "-")

    def dot(self, x: float, y: float, colour: str = style.VERMILION, radius: float = 5) -> None:
        """Draw a filled circle."""
        self._add(Path.circle((x, y), radius), colour, style.INK, None, 0.8, "-")

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
        FigureCanvasAgg(self).print_figure(buffer, format="png", dpi=_PNG_DPI)
        return buffer.getvalue()

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
        """What a notebook stores: SVG for the browser, PNG and words for everything else."""
        data = {
            "text/html": self.to_svg(),
            "image/png": base64.b64encode(self.to_png()).decode(),
            "text/plain": self.sentence,
        }
        return data, {"image/png": {"width": self.width_px}}

    @property
    def width_px(self) -> int:
        """Width on the screen at 100 %, in CSS pixels."""
        return round(WIDTH_PT * _CSS_PIXELS_PER_POINT)

    @property
    def height_px(self) -> int:
        """Height on the screen at 100 %, in CSS pixels."""
        return round(self.get_figheight() * _POINTS_PER_INCH * _CSS_PIXELS_PER_POINT)

    def _add(
        self, path: Path, fill: str, edge: str, hatch: str | None, width: float, dashes: str
    ) -> None:
        self.add_artist(
            PathPatch(
                path,
                facecolor=fill,
                edgecolor=edge,
                hatch=hatch,
                linewidth=width,
                linestyle=dashes,
                transform=self._points,
            )
        )
