"""What every figure can do, whether matplotlib draws it (Sheet) or we do (Drawing)."""

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from course_lib.figures.paper import style

WIDTH_PT = 520
_CSS_PIXELS_PER_POINT = 96 / 72

Point = tuple[float, float]  # x, y
Box = tuple[float, float, float, float]  # left, top, width, height


class Picture(ABC):
    """A figure of WIDTH_PT × `height_pt` points; x runs right and y runs down from the top left.

    Around it lies a padding, so that a word at 0 does not touch the edge.
    `sentence` says in words, with its numbers, what the figure shows.
    """

    sentence: str
    height_pt: float

    @abstractmethod
    def boxes(
        self,
        boxes: Iterable[Box],
        fill: str = style.SKY,
        hatch: str | None = None,
        edge: str = style.INK,
        dashed: bool = False,
    ) -> None:
        """Draw rectangles of one look."""

    @abstractmethod
    def line(
        self,
        points: Sequence[Point],
        colour: str = style.INK,
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        """Draw a line through `points`."""

    @abstractmethod
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

    def title(self, text: str) -> None:
        """Write the heading: bold, at the top left."""
        self.write(0, 13, text, style.TITLE_PT, bold=True)

    @abstractmethod
    def to_svg(self) -> str:
        """The figure as SVG text that can stand inside HTML."""

    @abstractmethod
    def to_png(self) -> bytes:
        """The figure as a PNG picture."""

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
        return round((WIDTH_PT + 2 * style.PADDING_PT) * _CSS_PIXELS_PER_POINT)

    @property
    def height_px(self) -> int:
        """Height on the screen at 100 %, in CSS pixels."""
        return round((self.height_pt + 2 * style.PADDING_PT) * _CSS_PIXELS_PER_POINT)
