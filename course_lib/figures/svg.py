"""Turns a matplotlib figure into short SVG text that is safe and readable inside a web page."""

import html
import io
import itertools
import re
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

_FONTS = "&#39;DejaVu Sans&#39;, Verdana, sans-serif"

_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
# Inside a page, matplotlib's `*{...}` would restyle every element of that page.
_STYLE = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>\s*", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_GROUP_NAME = re.compile(r'(?<=<g) id="[^"]*"')
_ID = re.compile(r'(\bid="|url\(#|href="#)')
_SIZE = re.compile(r"<svg[^>]*?viewBox=\"0 0 ([\d.]+) ([\d.]+)\"[^>]*>")
_SPACE = re.compile(r"\s+")

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
    text = _ID.sub(rf"\g<1>{prefix}", text)
    text = _SIZE.sub(lambda size: opening(size[1], size[2], label), text, count=1)
    return _SPACE.sub(" ", text).strip()


def opening(width: str, height: str, label: str) -> str:
    """The `<svg>` tag of a picture of this size in points, with `label` for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'role="img" aria-label="{html.escape(label)}" '
        f'width="{width}pt" height="{height}pt" viewBox="0 0 {width} {height}" '
        f'style="display: block; max-width: 100%; font-family: {_FONTS}; '
        'stroke-linejoin: round; stroke-linecap: butt">'
    )
