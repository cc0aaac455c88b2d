"""Four families of parallelism on one model of three layers: what of it each GPU holds."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import Box
from course_lib.figures.paper.sheet import Sheet

_GPUS = _LAYERS = 3
_TOP, _PANEL_WIDTH, _PANEL_HEIGHT = 40.0, 262.0, 180.0
_LEFT, _COLUMN, _BOX, _ROW = 46.0, 70.0, 57.0, 34.0
# By name: what is cut, what moves, and whether the network must add.
FAMILIES = {
    "data": ("the batch", "gradients", "added up"),
    "pipeline": ("the stack of layers", "activations", "passed on"),
    "tensor": ("every matrix", "partial sums", "added up"),
    "expert": ("the experts of a layer", "tokens", "passed on"),
}


def families(sent_bytes: Mapping[str, int] | None = None) -> Sheet:
    """Three GPUs under data, pipeline, tensor and expert parallelism; dashed: held elsewhere.

    `sent_bytes`: by family, what one GPU handed to the network; then the figure also says whether
    the network must add it up. Raises ValueError for a family that is not in FAMILIES.
    """
    sent = dict(sent_bytes or {})
    if unknown := sorted(set(sent) - set(FAMILIES)):
        raise ValueError(f"family {unknown[0]!r} is not one of {', '.join(FAMILIES)}: rename it")
    sheet = Sheet(_TOP + 2 * _PANEL_HEIGHT, _sentence(sent))
    sheet.title("one model of three layers on three GPUs")
    sheet.write(0, 29, "filled: what a GPU holds; dashed: what others hold", colour=style.GREY)
    for place, name in enumerate(FAMILIES):
        left = (place % 2) * _PANEL_WIDTH
        _panel(sheet, name, left, _TOP + (place // 2) * _PANEL_HEIGHT, sent.get(name))
    return sheet


def _sentence(sent: Mapping[str, int]) -> str:
    parts = []
    for name, (cut, moves, how) in FAMILIES.items():
        told = f"moves {moves}" if name not in sent else f"{moves} are {how}, {sent[name]:,} bytes"
        parts.append(f"{name} parallelism cuts {cut}; {told}")
    return "3 GPUs, 3 layers. " + ". ".join(part.capitalize() for part in parts) + "."


def _panel(sheet: Sheet, name: str, left: float, top: float, size: int | None) -> None:
    cut, moves, how = FAMILIES[name]
    sheet.write(left, top + 14, f"{name}: cuts {cut}", bold=True)
    for layer in range(_LAYERS):
        y = _layer_y(top, layer)
        sheet.write(left + _LEFT - 8, y + 18, f"layer {layer + 1}", size=9, align="right")
    for gpu in range(_GPUS):
        x = left + _LEFT + gpu * _COLUMN
        sheet.write(x + _BOX / 2, top + 32, f"GPU {gpu}", size=9, align="center")
        for layer in range(_LAYERS):
            whole = (x, _layer_y(top, layer), _BOX, _ROW - 8)
            sheet.boxes([whole], style.WHITE, edge=style.GREY, dashed=True)
            sheet.boxes(_held(name, gpu, layer, whole), style.WEIGHTS)
    text = f"moves {moves}" if size is None else f"{moves}, {how}: {size:,} bytes"
    sheet.write(left + _LEFT, _layer_y(top, _LAYERS) + 14, text)


def _layer_y(top: float, layer: int) -> float:
    return top + 40 + layer * _ROW


def _held(name: str, gpu: int, layer: int, whole: Box) -> list[Box]:
    """The part of a layer's box that a GPU fills."""
    x, y, width, height = whole
    third = width / _GPUS
    if name == "data":
        return [whole]
    if name == "pipeline":
        return [whole] if gpu == layer else []
    if name == "tensor":
        return [(x + gpu * third, y, third, height)]
    low = height / 3  # attention, which all have, above one of three experts
    return [(x, y, width, low), (x + gpu * third + 2, y + low + 3, third - 4, height - low - 5)]
