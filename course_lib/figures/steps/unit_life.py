"""One moment of an FSDP step: two lanes, the bytes of whole units, and the state of each unit."""

from itertools import pairwise

from course_lib.figures.data_parallel import lanes
from course_lib.figures.data_parallel.lanes import LEFT, RIGHT
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import Box
from course_lib.theory.inputs.units import format_bytes, format_duration
from course_lib.theory.memory.unit_life import UnitLife, UnitMoment

_LANES = 14.0
_CURVE, _CURVE_HIGH = 84.0, 64.0
_UNITS, _UNIT_HIGH, _SHARD_HIGH = 184.0, 46.0, 7.0
_KEY = _UNITS + _UNIT_HIGH + 40
_HEIGHT = _KEY + 18
_MOST_UNITS = 9


def unit_life_step(result: UnitLife, step: int) -> Drawing:
    """The lanes and the curve up to moment `step`; below them each unit as it is then.

    Raises ValueError for more than nine units or a step that does not exist.
    """
    moments = result.moments
    if len(result.units) > _MOST_UNITS:
        raise ValueError(f"{len(result.units)} units: draw at most {_MOST_UNITS}")
    if not 0 <= step < len(moments):
        raise ValueError(f"step {step}: give one from 0 to {len(moments) - 1}")
    now = moments[step]
    drawing = Drawing(_HEIGHT, _sentence(result, now))
    scale = (RIGHT - LEFT) / result.total_s
    lanes.lanes(drawing, result.tasks, _LANES, scale, now.at_s)
    lanes.key(drawing, _KEY, {"whole weights": style.TEMPORARY})
    _curve(drawing, result, step, scale)
    _cursor(drawing, result, now, scale)
    _units(drawing, now)
    return drawing


def _curve(drawing: Drawing, result: UnitLife, step: int, scale: float) -> None:
    """Whole weights, and whole gradients on top of them, moment by moment."""
    peak, bottom = max(result.peak_bytes, 1), _CURVE + _CURVE_HIGH
    weights: list[Box] = []
    gradients: list[Box] = []
    later: list[Box] = []
    moments = result.moments
    for place, (moment, following) in enumerate(pairwise(moments)):
        x, width = LEFT + moment.at_s * scale, (following.at_s - moment.at_s) * scale
        low = _CURVE_HIGH * moment.weights_bytes / peak
        high = _CURVE_HIGH * moment.gradients_bytes / peak
        if place >= step:
            later.append((x, bottom - low - high, width, low + high))
        else:
            weights.append((x, bottom - low, width, low))
            gradients.append((x, bottom - low - high, width, high))
    drawing.boxes(later, style.PALE, edge=style.PALE)
    drawing.boxes(weights, style.TEMPORARY, edge=style.TEMPORARY)
    drawing.boxes([box for box in gradients if box[3]], style.GRADIENTS, edge=style.GRADIENTS)
    drawing.line([(LEFT, _CURVE), (RIGHT, _CURVE)], style.GREY, width=0.7, dashed=True)
    drawing.line([(LEFT, _CURVE - 4), (LEFT, bottom), (RIGHT, bottom)], style.GREY)
    for y, text in (
        (_CURVE + 4, format_bytes(result.peak_bytes)),
        (_CURVE + 22, "beside"),
        (_CURVE + 33, "the shards"),
        (bottom, "0"),
    ):
        drawing.write(LEFT - 6, y, text, size=9, align="right", colour=style.GREY)


def _cursor(drawing: Drawing, result: UnitLife, now: UnitMoment, scale: float) -> None:
    x = LEFT + now.at_s * scale
    drawing.line([(x, _LANES - 4), (x, _CURVE + _CURVE_HIGH + 4)], style.INK, width=1.8)
    side, shift = ("right", -2) if now.at_s > result.total_s / 2 else ("left", 2)
    y = _CURVE + _CURVE_HIGH + 15
    drawing.write(x + shift, y, format_duration(now.at_s), size=9, align=side, bold=True)


def _units(drawing: Drawing, now: UnitMoment) -> None:
    """For each unit its weights, left, and its gradient, right; their states in words below."""
    width = (RIGHT - LEFT) / len(now.weights)
    bottom = _UNITS + _UNIT_HIGH
    drawing.write(LEFT - 6, _UNITS + 12, "weights,", size=9, align="right")
    drawing.write(LEFT - 6, _UNITS + 24, "gradient", size=9, align="right")
    half = min(20.0, width / 2 - 6)
    computing = {task.unit for task in now.running if task.lane == "computing"}
    for unit, (weights, gradient) in enumerate(zip(now.weights, now.gradients, strict=True)):
        middle = LEFT + (unit + 0.5) * width
        whole = (middle - half - 2, _UNITS, half, _UNIT_HIGH)
        shard = (middle - half - 2, bottom - _SHARD_HIGH, half, _SHARD_HIGH)
        beside = (middle + 2, _UNITS, half, _UNIT_HIGH)
        drawing.boxes([whole, beside], style.WHITE, edge=style.PALE)
        if weights == "asked":
            drawing.boxes([whole], style.WHITE, edge=style.MESSAGES, dashed=True)
        if weights == "arriving":
            drawing.boxes([whole], style.MESSAGES)
        if weights == "whole":
            drawing.boxes([whole], style.TEMPORARY)
        drawing.boxes([shard], style.WEIGHTS)
        if gradient == "leaving":
            drawing.boxes([beside], style.MESSAGES, "/")
        elif gradient == "sent":
            drawing.boxes([beside], style.WHITE, edge=style.GRADIENTS, dashed=True)
        elif gradient != "none":
            drawing.boxes([beside], style.GRADIENTS)
        if unit in computing:
            x, y, wide, high = middle - half - 5, _UNITS - 3, 2 * half + 10, _UNIT_HIGH + 6
            frame = [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)]
            drawing.line(frame, style.INK, width=1.6)
        name = "root" if unit == 0 else str(unit)
        drawing.write(middle, bottom + 16, name, size=9, align="center", bold=True)
        state = _state(weights, gradient, unit in computing)
        drawing.write(middle, bottom + 28, state, size=9, align="center", colour=style.GREY)


def _state(weights: str, gradient: str, computes: bool) -> str:
    if computes:
        return "computes"
    if gradient == "leaving":
        return "reduced"
    return weights


def _sentence(result: UnitLife, now: UnitMoment) -> str:
    there = [_name(n) for n, state in enumerate(now.weights) if state == "whole"]
    return (
        f"After {format_duration(now.at_s)} of {format_duration(result.total_s)}: "
        f"{', '.join(there) or 'no unit'} whole; {format_bytes(now.whole_bytes)} beside the "
        f"shards, {format_bytes(result.peak_bytes)} at the peak."
    )


def _name(unit: int) -> str:
    return f"layer {unit}" if unit else "root"
