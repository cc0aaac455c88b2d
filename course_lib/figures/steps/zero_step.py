"""One moment of a training step under ZeRO: what each rank holds of each layer."""

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.zero_steps import Layers, ZeroMoment, ZeroSteps

_LEFT, _RIGHT, _TOP, _GAP = 96.0, WIDTH_PT - 2.0, 56.0, 14.0
_THIN, _BETWEEN = 10.5, 14.0  # of a layer's weights; between weights, gradients and states
_DONE = {
    "begin": "Before the step",
    "gather": "All-gather of layer {}",
    "forward": "Forward pass of layer {}",
    "free": "Layer {} is thrown away, except each rank's own part",
    "backward": "Backward pass of layer {}",
    "reduce": "{how} of the gradients of layer {}",
    "update": "Update",
    "publish": "All-gather of the new weights of layer {}",
}


def zero_step(result: ZeroSteps, step: int) -> Drawing:
    """A column for each rank; heights are bytes: optimizer states take six times the weights.

    Filled is what the rank holds, in the place of its part. Hatched gradients are those of the
    rank's own samples, plain ones the sum over ranks. A pink dot: weights after the update. A
    frame: the layer at work.
    """
    moment = result.moments[step]
    thick = _THIN * result.layer_bytes[2] / result.layer_bytes[0]
    layers = len(moment.weights)
    tops = [_TOP, _TOP + layers * _THIN + _BETWEEN]
    tops.append(tops[1] + layers * _THIN + _BETWEEN)
    bottom = tops[2] + layers * thick
    drawing = Drawing(bottom + 44, _sentence(result, moment))
    drawing.title(zero_words(result, step))
    names = ("weights", "gradients", "optimizer")
    for name, top, height in zip(names, tops, (_THIN, _THIN, thick), strict=True):
        drawing.write(0, top + 10, name)
        for layer in range(layers):
            y = top + (layer + 0.5) * height + 3.3
            busy = moment.layer == layer and name != "optimizer"
            ink = style.INK if busy else style.GREY
            drawing.write(_LEFT - 6, y, f"layer {layer + 1}", 9, "right", ink, bold=busy)
    column = (_RIGHT - _LEFT + _GAP) / result.ranks
    for rank in range(result.ranks):
        x = _LEFT + rank * column
        _rank(drawing, result, moment, rank, (x, column - _GAP), tops, (_THIN, thick))
        said = format_bytes(moment.total_bytes, digits=1)
        drawing.write(x + (column - _GAP) / 2, bottom + 16, said, 9, "center", bold=True)
    drawing.write(0, bottom + 16, "a rank holds", 9)
    key = "hatched: from a rank's own samples; plain: summed over ranks; pink dot: already updated"
    drawing.write(0, bottom + 36, key, 9, colour=style.GREY)
    _messages(drawing, result, moment, tops, column)
    return drawing


def zero_words(result: ZeroSteps, step: int) -> str:
    """What happens at this moment, as a title."""
    moment = result.moments[step]
    how = "Reduce-scatter" if result.stage else "All-reduce"
    return _DONE[moment.what].format((moment.layer or 0) + 1, how=how)


def _sentence(result: ZeroSteps, moment: ZeroMoment) -> str:
    kinds = {
        "weights": moment.weights,
        "gathered weights": moment.gathered,
        "gradients": moment.gradients,
        "optimizer states": moment.states,
    }
    held = ", ".join(f"{format_bytes(sum(sizes))} of {name}" for name, sizes in kinds.items())
    where = "" if moment.layer is None else f" of layer {moment.layer + 1}"
    return (
        f"Stage {result.stage} on {result.ranks} ranks, {moment.what}{where}: each rank holds "
        f"{held}, and has sent {format_bytes(moment.sent_bytes)}."
    )


def _rank(
    drawing: Drawing,
    result: ZeroSteps,
    moment: ZeroMoment,
    rank: int,
    across: tuple[float, float],
    tops: list[float],
    heights: tuple[float, float],
) -> None:
    """One column: outlines of the whole, and what is held, filled."""
    x, width = across
    drawing.write(x + width / 2, _TOP - 10, f"rank {rank}", 9, "center")
    whole = result.layer_bytes
    sizes: tuple[Layers, Layers, Layers] = (moment.weights, moment.gradients, moment.states)
    fills = (style.WEIGHTS, style.GRADIENTS, style.STATES)
    thin, thick = heights
    for kind, (held, fill) in enumerate(zip(sizes, fills, strict=True)):
        height = thick if kind == 2 else thin
        own: list[Box] = []
        gathered: list[Box] = []
        hatched: list[Box] = []
        dots: list[Box] = []
        for layer, size in enumerate(held):
            y = tops[kind] + layer * height
            drawing.boxes([(x, y, width, height)], style.WHITE, edge=style.GREY)
            box = _held(x, y, width, height, size / whole[kind], rank, result.ranks)
            if kind == 0 and moment.gathered[layer]:
                gathered.append((x, y, width, height))
            if size:
                local = kind == 1 and not moment.summed[layer]
                (hatched if local else own).append(box)
            if kind == 0:
                dots += _dots(moment, layer, box, rank, result)
        drawing.boxes(gathered, style.TEMPORARY)
        drawing.boxes(own, fill)
        drawing.boxes(hatched, fill, "/")
        drawing.boxes(dots, style.UPDATE, edge=style.UPDATE)
    if moment.what in ("forward", "backward") and moment.layer is not None:
        y = tops[0] + moment.layer * _THIN
        edge = style.FORWARD if moment.what == "forward" else style.BACKWARD
        corners = [(x, y), (x + width, y), (x + width, y + _THIN), (x, y + _THIN), (x, y)]
        drawing.line(corners, edge, 2.5)


def _held(
    x: float, y: float, width: float, height: float, part: float, rank: int, ranks: int
) -> Box:
    """All of a layer, or this rank's part in its place."""
    if part > 1 / ranks:
        return x, y, width, height
    return x + width * rank / ranks, y, width / ranks, height


def _dots(moment: ZeroMoment, layer: int, box: Box, rank: int, result: ZeroSteps) -> list[Box]:
    """Where weights are those of after the update: nowhere, in the own part, or everywhere."""
    behind = moment.what in ("update", "publish")
    if not behind:
        return []
    x, y, width, height = box
    cuts = result.ranks if result.stage in (1, 2) else 1
    parts = range(cuts) if moment.published[layer] or cuts == 1 else [rank]
    each = width / cuts
    return [(x + (part + 0.5) * each - 2, y + height / 2 - 2, 4, 4) for part in parts]


def _messages(
    drawing: Drawing, result: ZeroSteps, moment: ZeroMoment, tops: list[float], column: float
) -> None:
    """Green between the columns, in the row of the layer that travels."""
    if moment.what not in ("gather", "reduce", "publish") or moment.layer is None:
        return
    y = tops[moment.what == "reduce"] + (moment.layer + 0.5) * _THIN
    for rank in range(1, result.ranks):
        x = _LEFT + rank * column
        drawing.boxes([(x - _GAP + 1, y - 3, _GAP - 2, 6)], style.MESSAGES)
