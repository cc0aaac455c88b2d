"""Text that a browser can place by itself."""

from matplotlib.backend_bases import RendererBase
from matplotlib.text import Text

_ANCHOR = {"left": "start", "center": "middle", "right": "end"}


class Label(Text):
    """One line of horizontal text.

    matplotlib measures each text in order to place it, which is two thirds of the time of a small
    figure. SVG needs no measure: position and anchor are enough. Other formats draw as usual.
    """

    def draw(self, renderer: RendererBase) -> None:
        """Write one `<text>` where the output is SVG."""
        writer = getattr(renderer, "writer", None)  # only SVG has one
        if writer is None:
            super().draw(renderer)
            return
        x, y = self.get_transform().transform(self.get_position())
        look = {
            "x": f"{x:.1f}",
            "y": f"{renderer.height - y:.1f}",
            "text-anchor": _ANCHOR[self.get_horizontalalignment()],
            "font-size": f"{self.get_fontsize():g}",
            "fill": self.get_color(),
        }
        if self.get_weight() == "bold":
            look["font-weight"] = "bold"
        writer.element("text", self.get_text(), look)
