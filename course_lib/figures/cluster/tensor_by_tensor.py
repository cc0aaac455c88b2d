"""The differences of two recorded updates, tensor by tensor, in units of expected rounding."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Protocol

from course_lib.figures.engines.axis import Axis
from course_lib.figures.engines.lines import Frame
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted
from course_lib.theory.compute.rounding import MORE_FROM, ROUNDING_UP_TO
from course_lib.theory.inputs.units import format_number

_LEFT, _RIGHT, _TOP, _PANEL, _GAP = 76.0, WIDTH_PT - 8, 40.0, 96.0, 46.0
_LOWEST = -2  # decade of the lowest tick; equal to the last bit stands one below it
_EQUAL = 10.0 ** (_LOWEST - 1)
_NAMED = 62.0  # width that a kind's name needs
_TOLD = f"difference over the typical rounding; dashed: {ROUNDING_UP_TO:g} and {MORE_FROM:g} times"
_SHORT = {
    "weight": "weights",
    "output": "forward",
    "gradient of the output": "backward",
    "gradient of the weight": "gradients",
}


class Tensor(Protocol):
    """One tensor of both runs, as comparing.Judged."""

    @property
    def kind(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def measured(self) -> float: ...
    @property
    def typical(self) -> float: ...


def tensor_by_tensor(runs: Mapping[str, Sequence[Tensor]], title: str = "") -> Drawing:
    """{"right": tensors, "broken": tensors} in their order; up: difference over typical rounding.

    Two lines: up to the lower it is rounding, above the upper more.
    """
    ratios = {name: [one.measured / one.typical for one in run] for name, run in runs.items()}
    most = max(MORE_FROM, *(max(each) for each in ratios.values()))
    decades = range(_LOWEST, math.ceil(math.log10(most)) + 1)
    ticks = [_EQUAL, *(10.0**power for power in decades[::2])]
    up = Axis(ticks, _told, log=True, ends=(_EQUAL, 10.0 ** decades[-1]))
    sentence = "; ".join(_sentence(name, run, ratios[name]) for name, run in runs.items())
    drawing = Drawing(_TOP + (_PANEL + _GAP) * len(runs) + 14, f"{sentence}.")
    drawing.title(title)
    drawing.write(0, 29, _TOLD, 9, colour=style.GREY)
    for row, (name, run) in enumerate(runs.items()):
        top = _TOP + row * (_PANEL + _GAP) + 32
        drawing.write(0, top - 20, name, bold=True)
        across = Axis((), ends=(0, len(run)))
        frame = Frame(drawing, across, up, _LEFT, top, _RIGHT, top + _PANEL)
        _panel(frame, run, ratios[name])
    for kind, start, end in _kinds(run):  # all runs have the same
        left, right = frame.x(start), frame.x(end)
        if right - left > _NAMED:
            drawing.write((left + right) / 2, frame.bottom + 16, kind, 9, "center", style.GREY)
    return drawing


def _panel(frame: Frame, run: Sequence[Tensor], ratios: Sequence[float]) -> None:
    """One run: a square for each tensor, at the height of its ratio; equal ones stand below."""
    drawing = frame.drawing
    frame.axes()
    for limit in (ROUNDING_UP_TO, MORE_FROM):
        frame.level(limit)
    kinds = [frame.x(start) for _, start, _ in _kinds(run)[1:]]
    drawing.lines([[(x, frame.top), (x, frame.bottom)] for x in kinds], style.GREY, 0.5)
    for fill, least, up_to in (
        (style.MESSAGES, -1.0, ROUNDING_UP_TO),
        (style.YELLOW, ROUNDING_UP_TO, MORE_FROM),
        (style.WARNING, MORE_FROM, math.inf),
    ):
        places = [
            (place + 0.5, max(ratio, 10.0**_LOWEST) if ratio > 0 else _EQUAL)
            for place, ratio in enumerate(ratios)
            if least < ratio <= up_to
        ]
        drawing.boxes([(frame.x(x) - 2, frame.y(y) - 2, 4.0, 4.0) for x, y in places], fill)
    first = _first(ratios)
    if first is not None:
        x = frame.x(first + 0.5)
        drawing.line([(x, frame.top - 6), (x, frame.bottom)], style.WARNING, 1.5)
        align = "left" if x < WIDTH_PT / 2 else "right"
        drawing.write(x, frame.top - 9, f"first: {run[first].title}", 9, align)


def _told(ratio: float) -> str:
    return "equal" if ratio == _EQUAL else format_number(ratio, 6)


def _first(ratios: Sequence[float]) -> int | None:
    """The place of the first that is not plainly rounding."""
    return next((place for place, ratio in enumerate(ratios) if ratio > ROUNDING_UP_TO), None)


def _kinds(run: Sequence[Tensor]) -> list[tuple[str, int, int]]:
    """Name, first and end of each stretch of one kind; the loss belongs to the forward pass."""
    found, place = [], 0
    for name, several in groupby(_SHORT.get(one.kind, "forward") for one in run):
        count = len(list(several))
        found.append((name, place, place + count))
        place += count
    return found


def _sentence(name: str, run: Sequence[Tensor], ratios: Sequence[float]) -> str:
    first = _first(ratios)
    if first is None:
        worst = format_number(max(ratios), 2)
        return f"{name}: {counted(len(run), 'tensor')}, {worst} times the typical rounding at most"
    return (
        f"{name}: of {len(run)} tensors number {first + 1} is the first that differs by more, "
        f"the {run[first].title}, by {format_number(ratios[first], 3)} times the typical rounding"
    )
