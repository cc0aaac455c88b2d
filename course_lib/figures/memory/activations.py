"""What one layer keeps for the backward pass, term by term."""

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.activations import ActivationTerms

# Terms that only some models have: without them there is nothing to say about "not kept".
_OF_SOME_MODELS = ("latents", "routed experts", "shared experts", "router", "unused")
_LEFT, _BARS_END = 128, 400
_ROW, _BAR, _TOP = 22, 15, 48


def activation_terms(
    terms: ActivationTerms, layers: int, title: str = "", unit: str = "GB"
) -> Sheet:
    """One bar for each term of a layer, and the sum over `layers` layers below them."""
    leaves = terms.leaves().items()
    sizes = {name: size for name, size in leaves if size or name not in _OF_SOME_MODELS}
    sheet = Sheet(_TOP + _ROW * len(sizes) + 34, sentence(terms, layers, title, unit))
    sheet.title(title)
    sheet.write(0, 30, "One layer, one micro-batch; all bars on one scale.", colour=style.GREY)
    scale = (_BARS_END - _LEFT) / max(*sizes.values(), 1)
    for row, (name, size) in enumerate(sizes.items()):
        y = _TOP + row * _ROW
        sheet.write(_LEFT - 8, y + 12, name, align="right")
        if size:
            sheet.boxes([(_LEFT, y, size * scale, _BAR)], style.ACTIVATIONS)
        text = f"{format_bytes(size, unit)} ({size / max(terms.total_bytes, 1):.0%})"
        sheet.write(_LEFT + size * scale + 6, y + 12, text if size else "not kept")
    total = layers * terms.total_bytes
    line = f"× {layers} layers = {format_bytes(total, unit)}"
    sheet.write(_LEFT, _TOP + _ROW * len(sizes) + 16, line, bold=True)
    return sheet


def sentence(terms: ActivationTerms, layers: int, title: str, unit: str) -> str:
    """The largest term and the sum over all layers, in words."""
    sizes = terms.leaves()
    largest = max(sizes, key=sizes.__getitem__)
    return (
        f"{title}: a layer keeps {format_bytes(terms.total_bytes, unit)}, most of it for "
        f"{largest} ({format_bytes(sizes[largest], unit)}); {layers} layers keep "
        f"{format_bytes(layers * terms.total_bytes, unit)}."
    )
