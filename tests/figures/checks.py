"""What must hold of every figure: nothing cut, no words on others, every word readable."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Bbox

from course_lib.figures import Sheet
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.label import Label
from course_lib.figures.paper.picture import Picture

LEAST_CONTRAST = 4.5
# What JupyterLab's themes put in place of the page's colours.
LIGHT = {style.INK: "#212121", style.GREY: "#757575", style.PALE: "#EEEEEE"}
DARK = {
    style.INK: "#FFFFFF",
    style.GREY: "#B8B8B8",
    style.PALE: "#424242",
    style.WHITE: "#111111",
    style.WARNING_TEXT: "#E08640",
}
# "1.26e+03", but neither "e-9" inside of a word nor "2e" of a model's name.
_SCIENTIFIC = re.compile(r"\d[eE][+-]\d")


@dataclass(frozen=True)
class Drawn:
    """A figure, its SVG, and itself drawn once."""

    picture: Picture
    sheet: Sheet
    svg: str
    renderer: RendererAgg

    @cached_property
    def labels(self) -> list[Label]:
        return self.sheet.findobj(Label)

    @cached_property
    def extents(self) -> list[tuple[str, Bbox]]:
        """The words and where they stand."""
        return [(one.get_text(), one.get_window_extent(self.renderer)) for one in self.labels]

    @cached_property
    def patches(self) -> list[PathPatch]:
        return self.sheet.findobj(PathPatch)

    @cached_property
    def filled(self) -> list[tuple[str, Path, bool]]:
        """What is filled in the order in which it is drawn: colour, outline, whether hatched."""
        found = []
        for patch in self.patches:
            if patch.get_facecolor()[3]:
                fill = to_hex(patch.get_facecolor()).upper()
                path = patch.get_path().transformed(patch.get_transform())
                hatched = bool(patch.get_hatch())
                found += [(fill, Path(corners), hatched) for corners in path.to_polygons()]
        return found

    @cached_property
    def boxes(self) -> list[tuple[str, Bbox]]:
        """The filled boxes among them: colour and place."""
        return [(fill, path.get_extents()) for fill, path, _ in self.filled if len(path) == 5]


def draw(picture: Picture) -> Drawn:
    """Draw a figure with matplotlib."""
    sheet = picture.to_sheet() if isinstance(picture, Drawing) else picture
    assert isinstance(sheet, Sheet)
    canvas = FigureCanvasAgg(sheet)
    canvas.draw()
    return Drawn(picture, sheet, picture.to_svg(), canvas.get_renderer())


def faults(drawn: Drawn) -> list[str]:
    """Everything that is wrong with the figure, in words."""
    checks = (cut, overlapping, scientific, unreadable, hatched, running_over)
    return [fault for check in checks for fault in check(drawn)]


def cut(drawn: Drawn) -> Iterator[str]:
    """What reaches beyond the figure."""
    page = drawn.sheet.bbox.padded(0.5)
    extents = [(str(thing), thing.get_window_extent(drawn.renderer)) for thing in drawn.patches]
    extents += [("axes", axes.get_tightbbox(drawn.renderer)) for axes in drawn.sheet.axes]
    for name, box in [*drawn.extents, *extents]:
        if box.x0 < page.x0 or box.x1 > page.x1 or box.y0 < page.y0 or box.y1 > page.y1:
            yield f"{name!r} is cut"


def overlapping(drawn: Drawn) -> Iterator[str]:
    """Words on other words."""
    boxes = [(text, box.padded(-1.5)) for text, box in drawn.extents]
    for place, (text, box) in enumerate(boxes):
        for other, other_box in boxes[:place]:
            if box.overlaps(other_box):
                yield f"{text!r} lies on {other!r}"


def scientific(drawn: Drawn) -> Iterator[str]:
    """Numbers such as 1.26e+03, in the figure or in its sentence."""
    for text in [*(text for text, _ in drawn.extents), drawn.picture.sentence]:
        if _SCIENTIFIC.search(text):
            yield f"{text!r} holds a number in scientific notation"


def unreadable(drawn: Drawn) -> Iterator[str]:
    """Words with too little contrast, on the page or on a box, in the light or the dark theme."""
    for label, (text, box) in zip(drawn.labels, drawn.extents, strict=True):
        colour, (ground, _) = to_hex(label.get_color()).upper(), _ground(drawn, box)
        for theme, colours in (("light", LIGHT), ("dark", DARK)):
            ratio = contrast(colours.get(colour, colour), colours.get(ground, ground))
            if ratio < LEAST_CONTRAST:
                yield f"{text!r}, {colour} on {ground}: {ratio:.2f} to 1 in the {theme} theme"


def hatched(drawn: Drawn) -> Iterator[str]:
    """Thin words on a hatch."""
    for label, (text, box) in zip(drawn.labels, drawn.extents, strict=True):
        fill, lines = _ground(drawn, box)
        if lines and label.get_fontweight() != "bold":
            yield f"{text!r} stands thin on hatched {fill}"


def running_over(drawn: Drawn) -> Iterator[str]:
    """Words that cross the edge of a filled box."""
    for text, box in drawn.extents:
        words = Bbox.from_extents(box.x0 + 1, box.y0 + 3, box.x1 - 1, box.y1 - 3)
        for fill, filled in drawn.boxes:
            inside = filled.x0 <= words.x0 and words.x1 <= filled.x1
            inside = inside and filled.y0 <= words.y0 and words.y1 <= filled.y1
            if words.overlaps(filled) and not inside:
                yield f"{text!r} runs over the edge of a box in {fill}"


def beside(drawn: Drawn, words: Bbox) -> list[str]:
    """The colour of the box around the words, or of the nearest within 30 points, on their line."""
    y = (words.y0 + words.y1) / 2
    around = [
        fill
        for fill, box in drawn.boxes
        if box.x0 <= words.x0 and words.x1 <= box.x1 and box.y0 <= y <= box.y1
    ]
    if around and around[-1] not in (style.WHITE, style.PALE):
        return around[-1:]
    apart = [
        (max(words.x0 - box.x1, box.x0 - words.x1), fill)
        for fill, box in drawn.boxes
        if box.y0 <= y <= box.y1 and fill != style.WHITE
    ]
    return [fill for distance, fill in sorted(apart)[:1] if 0 <= distance < 30]


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of contrast, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _ground(drawn: Drawn, words: Bbox) -> tuple[str, bool]:
    """The colour below the middle of the words, and whether it is hatched."""
    x, y = (words.x0 + words.x1) / 2, (words.y0 + words.y1) / 2
    below = [(fill, lines) for fill, path, lines in drawn.filled if path.contains_point((x, y))]
    return below[-1] if below else (style.WHITE, False)
