"""Text that a browser can place by itself."""

from typing import Any, Protocol, cast

from matplotlib.backend_bases import RendererBase
from matplotlib.text import Text

_ANCHOR = {"left": "start", "center": "middle", "right": "end"}


class _SvgRenderer(Protocol):
    """What matplotlib's SVG renderer has and its type does not mention."""

    height: float
    writer: Any


class Label(Text):
    """One line of horizontal text.

    matplotlib measures each text in order to place it, which takes two thirds of the time of a
    small figure. In SVG position and anchor are enough. Other formats draw as usual.
    """

    def draw(self, renderer: RendererBase) -> None:
        """Write one `<text>` where the output is SVG."""
        if not hasattr(renderer, "writer"):  # only SVG has one
            super().draw(renderer)
            return
        svg = cast(_SvgRenderer, renderer)
        x, y = self.get_transform().transform(self.get_position())
        look = {
            "x": f"{x:.1f}",
            "y": f"{svg.height - y:.1f}",
            "text-anchor": _ANCHOR[self.get_horizontalalignment()],
            "font-size": f"{self.get_fontsize():g}",
            "fill": self.get_color(),
        }
        if self.get_fontweight() == "bold":
            look["font-weight"] = "bold"
        svg.writer.element("text", self.get_text(), look)
