"""Turns a matplotlib figure into short SVG text that is safe and readable inside a web page."""

import html
import io
import itertools
import re
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from course_lib.figures.paper import style

_FONTS = "&#39;DejaVu Sans&#39;, Verdana, sans-serif"

_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
# Inside a page, matplotlib's `*{...}` would restyle every element of that page.
_STYLE = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>\s*", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_GROUP_NAME = re.compile(r'(?<=<g) id="[^"]*"')
_ID = re.compile(r'\bid="|url\(#|href="#')
_SIZE = re.compile(r"<svg[^>]*?viewBox=\"0 0 ([\d.]+) ([\d.]+)\"[^>]*>")
_LOOK = re.compile(r'style="[^"]*"')
_PATH = re.compile(r'\bd="[^"]*"')
_LONG = re.compile(r"(?<=\.\d\d)\d+")  # hundredths of a point are enough
_SPACE = re.compile(r"\s+")

# The page's colours as variables of JupyterLab's theme; other pages show the plain colours.
_VARIABLES = {
    "i": ("content-font-color1", style.INK),
    "g": ("content-font-color2", style.GREY),
    "p": ("layout-color2", style.PALE),
    "w": ("layout-color0", style.WHITE),
}
_NAMES = {colour.lower(): f"var(--{name})" for name, (_, colour) in _VARIABLES.items()}
_NAMES |= {"#000000": "var(--i)", style.WARNING_TEXT.lower(): "var(--r)"}  # matplotlib's own ink
_PAGE_COLOUR = re.compile("|".join(_NAMES), re.IGNORECASE)
# Towards the ink, which is dark on a light page and light on a dark one.
_WARNING = f"color-mix(in srgb,{style.VERMILION} 75%,var(--i))"
_THEME = ";".join(
    [f"--{name}:var(--jp-{jp},{colour})" for name, (jp, colour) in _VARIABLES.items()]
    + [f"--r:{_WARNING}"]
)

_numbers = itertools.count()


def render(figure: Figure, label: str) -> str:
    """`figure` as one `<svg role="img">` element, with `label` as its text for screen readers.

    Its ids are its own, so that several figures in one page never share a pattern or a clip.
    """
    buffer = io.StringIO()
    # Text stays text (searchable, and drawn by the browser); ids depend on the content alone.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "course_lib"}):
        canvas: Any = FigureCanvasSVG(figure)  # matplotlib's backends have no types
        canvas.print_svg(buffer, metadata={"Date": None})
    return _compact(buffer.getvalue(), label, prefix=f"f{next(_numbers)}-")


def _compact(text: str, label: str, prefix: str) -> str:
    text = text[text.index("<svg") :]
    for unwanted in (_METADATA, _STYLE, _COMMENT, _GROUP_NAME):
        text = unwanted.sub("", text)
    text = themed(_ID.sub(lambda place: place[0] + prefix, text))
    text = _SIZE.sub(lambda size: opening(float(size[1]), float(size[2]), label), text, count=1)
    text = _LOOK.sub(lambda look: look[0].replace("; ", ";").replace(": ", ":"), text)
    text = _PATH.sub(lambda path: _LONG.sub("", path[0]), text)
    return _SPACE.sub(" ", text).strip()


def themed(text: str) -> str:
    """SVG with the page's ink, greys and ground in place of our own."""
    return _PAGE_COLOUR.sub(lambda colour: _NAMES[colour[0].lower()], text)


def opening(width: float, height: float, label: str) -> str:
    """The `<svg>` tag of a picture of this size in points, with `label` for screen readers.

    Around the picture lies the padding; a narrow page shrinks both width and height.
    """
    pad = style.PADDING_PT
    wide, high = f"{width + 2 * pad:g}", f"{height + 2 * pad:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'role="img" aria-label="{html.escape(label)}" '
        f'width="{wide}pt" height="{high}pt" viewBox="-{pad} -{pad} {wide} {high}" '
        f'style="{_THEME};display:block;max-width:100%;height:auto;background:var(--w);'
        f"fill:var(--i);font-family:{_FONTS};stroke-linejoin:round;stroke-linecap:butt" + '">'
    )
