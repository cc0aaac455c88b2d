"""The opening tag of a figure's SVG, and its colours as those of the page around it."""

import html
import re

from course_lib.figures.paper import style

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
# Towards the ink, which is dark on a light page and light on a dark one.
_WARNING = f"color-mix(in srgb,{style.VERMILION} 75%,var(--i))"
_THEME = ";".join(
    [f"--{name}:var(--jp-{jp},{colour})" for name, (jp, colour) in _VARIABLES.items()]
    + [f"--r:{_WARNING}"]
)


def themed(text: str) -> str:
    """SVG with the page's ink, greys and ground in place of our own."""
    return _PAGE_COLOUR.sub(lambda colour: _NAMES[colour[0].lower()], text)


def opening(width: float, height: float, label: str, in_page: bool = True) -> str:
    """The `<svg>` tag of a picture of this size in points, with `label` for screen readers.

    Around the picture lies the padding. `in_page`: in the page's colours, and a narrow page shrinks
    both width and height; otherwise on white.
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
