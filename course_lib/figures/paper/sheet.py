"""Another name of `Drawing`, and matplotlib's axes for the three figures that still have them."""

import io
import re
from typing import Any

from course_lib.figures.paper import style, svg
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT


class Sheet(Drawing):
    """A Drawing; use that."""

    _figure: Any = None

    def add_axes(self, place: tuple[float, float, float, float]) -> Any:
        """Axes of matplotlib below what is drawn."""
        from matplotlib.figure import Figure

        self._figure = Figure(figsize=(WIDTH_PT / 72, self.height_pt / 72), dpi=72)
        return self._figure.add_axes(place)

    def to_svg(self, themed: bool = True) -> str:
        """SVG of the axes and of what is drawn."""
        drawn = super().to_svg(themed)
        if self._figure is None:
            return drawn
        import matplotlib

        buffer = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "course_lib"}):
            self._figure.savefig(buffer, format="svg", metadata={"Date": None})
        axes = buffer.getvalue().partition("<svg")[2].partition(">")[2].rpartition("</svg>")[0]
        axes = axes.replace("#000000", style.INK)
        axes = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", axes, flags=re.DOTALL)
        return drawn.replace(
            "</defs>", "</defs>" + svg.themed(axes.replace("xlink:href", "href")), 1
        )
