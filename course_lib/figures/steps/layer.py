"""A transformer layer forward and backward, one operation: what is held for the backward pass."""

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.layer_walk import ATTENTION, OPERATIONS, LayerWalk, SavedTensor

_TOP, _ROW, _BOX = 40.0, 21.0, 17.0
_OPERATION = 118.0  # width of the boxes of operations
_BARS = 345.0  # where the bars begin
_CURVE = 66.0  # height of the curve below
_GOING = {
    "before": "before the layer",
    "forward": "forward",
    "again": "computed again",
    "backward": "backward",
}
_LOOK = {"forward": style.FORWARD, "again": style.FORWARD, "backward": style.BACKWARD}


def layer_step(walk: LayerWalk, step: int, title: str = "") -> Drawing:
    """The layer from top to bottom; beside each operation the tensors that are held for it.

    A tensor that came with this step is framed thick; one that has just been used is an empty
    dashed frame. Below: all that is held, over all steps.
    """
    moment = walk.moments[step]
    bottom = _TOP + _ROW * (len(OPERATIONS) + 1)
    drawing = Drawing(bottom + _CURVE + 46, layer_sentence(walk, step))
    now = f"{_GOING[moment.going]}: {moment.operation}" if moment.operation else _GOING["before"]
    drawing.title(now)
    drawing.write(WIDTH_PT, 13, title, 9, "right", style.GREY)
    drawing.write(_OPERATION + 16, 32, "held for the backward pass", 9, colour=style.GREY)
    scale = (WIDTH_PT - _BARS) / max(
        sum(one.size_bytes for one in tensors) for tensors in _lines(walk).values()
    )
    y = _TOP
    for operation in OPERATIONS:
        look = _LOOK[moment.going] if operation == moment.operation else style.PALE
        lines = [key for key in _lines(walk) if key[0] == operation]
        height = _ROW * len(lines) - _ROW + _BOX
        drawing.boxes([(0, y, _OPERATION, height)], look, edge=style.GREY)
        colour = style.INK if look == style.PALE else style.ON_FILL
        drawing.write(6, y + height / 2 + 3.5, operation, 9, colour=colour)
        for key in lines:
            _tensors(drawing, _lines(walk)[key], walk, step, y, scale)
            y += _ROW
    if moment.going != "before":
        ends = (_OPERATION + 7, _TOP), (_OPERATION + 7, y - 4)
        down = moment.going != "backward"
        arrow(drawing, *(ends if down else ends[::-1]), _LOOK[moment.going], 2)
    _curve(drawing, walk, step, bottom + 24)
    return drawing


def layer_sentence(walk: LayerWalk, step: int) -> str:
    """What this step stores and frees, and all that is held, in words."""
    moment = walk.moments[step]
    told = f"{_GOING[moment.going]} {moment.operation}".strip()
    stored = ", ".join(f"{one.name} ({format_bytes(one.size_bytes)})" for one in moment.stored)
    freed = ", ".join(f"{one.name} ({format_bytes(one.size_bytes)})" for one in moment.freed)
    words = [f"Step {step} of {len(walk.moments) - 1}, {told}"]
    words += [f"stored: {stored}"] if stored else []
    words += [f"freed: {freed}"] if freed else []
    return f"{'; '.join(words)}. Held: {format_bytes(moment.held_bytes)}."


def _lines(walk: LayerWalk) -> dict[tuple[str, int], list[SavedTensor]]:
    """The tensors of each operation; attention's scores have a line of their own."""
    lines: dict[tuple[str, int], list[SavedTensor]] = {(name, 0): [] for name in OPERATIONS}
    lines[ATTENTION, 1] = []
    for tensor in walk.tensors:
        lines[tensor.saver, int(tensor.scores)].append(tensor)
    return lines


def _tensors(
    drawing: Drawing, tensors: list[SavedTensor], walk: LayerWalk, step: int, y: float, scale: float
) -> None:
    """Bars of what is held of one line, and its name and size."""
    moment, x = walk.moments[step], _BARS
    for one in tensors:
        box = (x, y, max(one.size_bytes * scale, 1.5), _BOX)
        if one in moment.held:
            drawing.boxes([box], style.ACTIVATIONS)
        if one in moment.stored:
            drawing.line([(x - 2, y - 2), (x - 2, y + _BOX + 2)], style.FORWARD, 3)
        if one in moment.freed:
            drawing.boxes([box], style.WHITE, edge=style.BACKWARD, dashed=True)
        x += one.size_bytes * scale
    shown = [one for one in tensors if one in (*moment.held, *moment.freed) and one.size_bytes]
    if shown:
        size = format_bytes(sum(one.size_bytes for one in shown))
        names = ", ".join([shown[0].name, *(o.name.split("'s ")[-1] for o in shown[1:])])
        used = all(one in moment.freed for one in shown)
        text = f"{names}, {size}"
        new = any(one in moment.stored for one in shown)
        colour = style.GREY if used else style.INK
        drawing.write(_OPERATION + 16, y + 12, text, 9, colour=colour, bold=new)


def _curve(drawing: Drawing, walk: LayerWalk, step: int, top: float) -> None:
    """Bytes held after each step; as far as the story has come it is filled."""
    bottom, left = top + _CURVE, 8.0
    wide = (WIDTH_PT - 112 - left) / len(walk.moments)
    high = _CURVE / walk.peak_bytes
    bars = [
        (left + place * wide, bottom - one.held_bytes * high, wide, one.held_bytes * high)
        for place, one in enumerate(walk.moments)
    ]
    drawing.boxes(bars[step + 1 :], style.PALE, edge=style.PALE)
    drawing.boxes(bars[: step + 1], style.ACTIVATIONS, edge=style.ACTIVATIONS)
    drawing.boxes([bars[step]], style.ACTIVATIONS)
    drawing.line([(left, bottom), (WIDTH_PT - 108, bottom)], style.GREY)
    drawing.write(left, top - 6, "held, step by step", 9, colour=style.GREY)
    held = format_bytes(walk.moments[step].held_bytes)
    drawing.write(WIDTH_PT, top + 12, f"now {held}", bold=True, align="right")
    peak = format_bytes(walk.peak_bytes)
    drawing.write(WIDTH_PT, top + 28, f"most {peak}", 9, "right", style.GREY)
    kept = format_bytes(walk.kept_bytes)
    drawing.write(WIDTH_PT, top + 42, "between the", 9, "right", style.GREY)
    drawing.write(WIDTH_PT, top + 54, f"passes {kept}", 9, "right", style.GREY)
    turn = left + wide * (len(OPERATIONS) + 1)
    drawing.line([(turn, top), (turn, bottom + 4)], style.GREY, dashed=True)
    drawing.write(left, bottom + 14, "forward", 9, colour=style.GREY)
    drawing.write(turn, bottom + 14, "the other layers run here", 9, "center", style.GREY)
    drawing.write(WIDTH_PT - 108, bottom + 14, "backward", 9, "right", style.GREY)
