"""YaFSDP's four buffers while one layer computes."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.theory.memory.buffer_turns import BufferMoment

_ROW, _CELL_HIGH = 22.0, 24.0
_LEFT, _WIDE, _HIGH, _BETWEEN = 84.0, 190.0, 44.0, 36.0
_FIRST, _SECOND = 84.0, 164.0  # weights and gradients
_HEIGHT = _SECOND + _HIGH + 8
_MOST_LAYERS = 16


def buffer_turns_step(moments: Sequence[BufferMoment], step: int) -> Drawing:
    """The layers in a row, the one that computes filled; below, even and odd buffers.

    Raises ValueError for more than 16 layers or a step that does not exist.
    """
    layers = len(moments) // 2
    if layers > _MOST_LAYERS:
        raise ValueError(f"{layers} layers: draw at most {_MOST_LAYERS}")
    if not 0 <= step < len(moments):
        raise ValueError(f"step {step}: give one from 0 to {len(moments) - 1}")
    now = moments[step]
    drawing = Drawing(_HEIGHT, _sentence(now))
    _layers(drawing, now, layers)
    for odd, name in enumerate(("even layers", "odd layers")):
        x = _LEFT + odd * (_WIDE + _BETWEEN)
        drawing.write(x + _WIDE / 2, _FIRST - 8, name, align="center", bold=True)
        _buffer(drawing, x, _FIRST, now.weights[odd], _state(now.weights[odd], now, "in use"))
        _buffer(drawing, x, _SECOND, now.gradients[odd], _state(now.gradients[odd], now, "growing"))
    for y, text in ((_FIRST, "gathered"), (_SECOND, "gradients")):
        drawing.write(_LEFT - 10, y + _HIGH / 2 + 4, text, align="right")
    return drawing


def _layers(drawing: Drawing, now: BufferMoment, layers: int) -> None:
    arrow = "forward →" if now.phase == "forward" else "← backward"
    drawing.write(_LEFT - 10, _ROW + 16, arrow, align="right", size=9, bold=True)
    width = min((WIDTH_PT - _LEFT - 6) / layers, 52.0)
    colour = style.FORWARD if now.phase == "forward" else style.BACKWARD
    boxes = [(_LEFT + n * width, _ROW, width - 3, _CELL_HIGH) for n in range(layers)]
    drawing.boxes([box for n, box in enumerate(boxes) if n != now.layer], style.PALE)
    drawing.boxes([boxes[now.layer]], colour)
    for n, (x, y, wide, _) in enumerate(boxes):
        here = n == now.layer
        colour = style.ON_FILL if here else style.INK
        drawing.write(x + wide / 2, y + 16, str(n), align="center", colour=colour, bold=here)


def _state(held: int | None, now: BufferMoment, working: str) -> str:
    """What a buffer that has layer `held` is doing; `working` says it of the layer that computes.

    Weights only arrive and gradients only leave.
    """
    if held is None:
        return "empty"
    if held == now.layer:
        return working
    moves = {now.arriving: "arriving"} if working == "in use" else {now.leaving: "leaving"}
    return moves.get(held, "kept")


_WORDS = {
    "empty": "empty",
    "in use": "layer {}: computes with them",
    "arriving": "layer {}: arrives",
    "kept": "layer {}: still here",
    "growing": "layer {}: being computed",
    "leaving": "layer {}: reduced, on its way out",
}


def _buffer(drawing: Drawing, x: float, y: float, held: int | None, state: str) -> None:
    box = [(x, y, _WIDE, _HIGH)]
    if state == "in use":
        drawing.boxes(box, style.TEMPORARY)
    elif state == "growing":
        drawing.boxes(box, style.GRADIENTS)
    elif state in ("arriving", "leaving"):
        # A strip of messages at the edge where they come in or go out.
        fill = style.TEMPORARY if state == "arriving" else style.GRADIENTS
        drawing.boxes(box, style.WHITE, edge=style.MESSAGES, dashed=True)
        half = _WIDE / 2
        drawing.boxes([(x, y + _HIGH - 12, half, 12)], fill)
        drawing.boxes([(x + half, y + _HIGH - 12, half, 12)], style.MESSAGES, "/")
    else:
        drawing.boxes(box, style.WHITE if state == "empty" else style.PALE, edge=style.GREY)
    filled = state in ("in use", "growing")
    colour = style.ON_FILL if filled else style.GREY if state == "empty" else style.INK
    middle = 27 if filled or state in ("empty", "kept") else 20
    text = _WORDS[state].format(held)
    drawing.write(x + _WIDE / 2, y + middle, text, align="center", colour=colour)


def _sentence(now: BufferMoment) -> str:
    parts = [f"{now.phase} of layer {now.layer}, whose weights are in buffer {now.layer % 2}"]
    if now.arriving is not None:
        parts.append(f"layer {now.arriving} arrives in buffer {now.arriving % 2}")
    if now.leaving is not None:
        parts.append(f"gradients of layer {now.leaving} leave buffer {now.leaving % 2}")
    return "; ".join(parts).capitalize() + "."
