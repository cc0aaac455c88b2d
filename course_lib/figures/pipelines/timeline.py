"""What each pipeline stage does and when: one row a stage, one box a pass."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple, Protocol

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.key import key
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_number

_LEFT = 58
_RIGHT = WIDTH_PT - 4
_HEAD = 22  # above the rows of a chart: its name
_FOOT = 18  # below them: its time
_LEGEND = 34  # two lines, whatever occurs, so that a slider moves nothing below the figure
_ROWS_HEIGHT = 190  # of all charts together, unless their rows are already as low as possible
_ROW_LEAST = 5
_NAME_ROOM = 11  # height of a row that leaves room for its name
_NUMBER_PT = 7.5
_DIGIT_PT = 0.64 * _NUMBER_PT  # width of a digit in DejaVu Sans
_OUTLINED = 4  # narrower boxes have no outline, which would hide their colour
_NUMBER_GAP = 1.8  # between two numbers of neighbours, so that they don't read as one

# The kinds of pass of theory.pipelines.schedules. Later chunks are lighter.
_NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "input's gradient",
    "W": "weights' gradient",
}
_FILLS = {
    "F": style.FORWARD,
    "B": style.BACKWARD,
    "I": style.INPUT_GRADIENT,
    "W": style.WEIGHT_GRADIENT,
}


class Task(Protocol):
    """A pass and its time, as theory.pipelines.timeline.Task."""

    @property
    def stage(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def micro_batch(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


class _Bar(NamedTuple):
    kind: str
    later: bool  # not the first chunk
    box: Box
    number: str


def timeline(charts: Mapping[str, Sequence[Task]], seconds: bool = True) -> Drawing:
    """One chart under another on the same scale: {"predicted": tasks, "measured": tasks}.

    Time starts at 0, in seconds, or in any unit. The number in a box is its micro-batch, where
    there is room. Raises ValueError for a chart without tasks or a pass of an unknown kind.
    """
    for name, tasks in charts.items():
        if not tasks:
            raise ValueError(f"chart {name!r} has no tasks: give at least one pass")
        for task in tasks:
            if task.kind not in (*_NAMES, "F&B"):
                raise ValueError(
                    f"kind {task.kind!r} of a pass in chart {name!r} is unknown: give one of "
                    f"{', '.join(_NAMES)}, F&B"
                )
    if not charts:
        raise ValueError('charts is empty: give for example {"predicted": tasks}')
    end = max(task.end for tasks in charts.values() for task in tasks)
    rows_height = _ROWS_HEIGHT / len(charts)
    rows = [max(_ROW_LEAST, rows_height / _stages(tasks)) for tasks in charts.values()]
    heights = [
        _HEAD + row * _stages(tasks) + _FOOT
        for row, tasks in zip(rows, charts.values(), strict=True)
    ]
    drawing = Drawing(sum(heights) + _LEGEND + 6, _sentence(charts, seconds))
    top, scale = 0.0, (_RIGHT - _LEFT) / end
    numbered = False
    for (name, tasks), row, height in zip(charts.items(), rows, heights, strict=True):
        numbered |= _chart(drawing, name, tasks, (top, row, scale))
        top += height
        text = _time(_end(tasks), seconds)
        _axis(drawing, top - _FOOT, _end(tasks) * scale, text)
    _legend(drawing, charts, top + 4, numbered)
    return drawing


def _sentence(charts: Mapping[str, Sequence[Task]], seconds: bool) -> str:
    parts = []
    for name, tasks in charts.items():
        numbers = {task.micro_batch for task in tasks}
        numbers |= {other.micro_batch for task in tasks if (other := _other(task))}
        several = "es" if len(numbers) > 1 else ""
        parts.append(
            f"{name}: {counted(_stages(tasks), 'stage')}, {len(numbers)} micro-batch{several}, "
            f"from 0 to {_time(_end(tasks), seconds)}"
        )
    return "; ".join(parts) + "."


def _chart(
    drawing: Drawing,
    name: str,
    tasks: Sequence[Task],
    place: tuple[float, float, float],
) -> bool:
    """Whether there are numbers in it. `place`: top, height of a row, points a unit."""
    top, row, scale = place
    stages, groups = _stages(tasks), dict[tuple[str, bool], list[_Bar]]()
    drawing.write(0, top + 14, name, size=style.TITLE_PT, bold=True)
    top += _HEAD
    names = [
        (_LEFT - 6.0, top + (stage + 0.5) * row + 3.5, f"stage {stage}")
        for stage in range(0, stages, math.ceil(_NAME_ROOM / row))
    ]
    drawing.write_all(names, size=9, align="right")
    for bar in _bars(tasks, top, row, scale):
        groups.setdefault((bar.kind, bar.later), []).append(bar)
    length = _end(tasks) * scale
    drawing.boxes([(_LEFT, top, length, stages * row)], style.IDLE, edge=style.GREY)
    for (kind, later), bars in groups.items():
        fill = style.lighter(_FILLS[kind]) if later else _FILLS[kind]
        edge = fill if _width(bars) < _OUTLINED else style.INK
        drawing.boxes([bar.box for bar in bars], fill, edge=edge)
    widest = max(map(_width, groups.values()))
    numbers = [_number(bar) for bars in groups.values() for bar in _numbered(bars, widest)]
    if numbers:
        drawing.write_all(numbers, size=_NUMBER_PT, align="center", colour=style.ON_FILL)
    return bool(numbers)


def _axis(drawing: Drawing, bottom: float, length: float, text: str) -> None:
    drawing.write(_LEFT, bottom + 12, "0", size=9, colour=style.GREY)
    if length > 60:
        end = _LEFT + length
        drawing.write(end, bottom + 12, text, size=9, align="right", colour=style.GREY)


def _bars(tasks: Sequence[Task], top: float, row: float, scale: float) -> Iterator[_Bar]:
    """One bar for each pass; two of half the height where forward and backward overlap."""
    for task in tasks:
        x, y = _LEFT + task.start * scale, top + task.stage * row
        width, other = (task.end - task.start) * scale, _other(task)
        if other is None:
            box = (x, y + 1, width, row - 2)
            yield _Bar(task.kind, task.chunk > 0, box, str(task.micro_batch))
            continue
        half = (row - 2) / 2
        box = (x, y + 1, width, half)
        yield _Bar("F", task.chunk > 0, box, str(task.micro_batch))
        box = (x, y + 1 + half, width, half)
        yield _Bar(other.kind, other.chunk > 0, box, str(other.micro_batch))


def _width(bars: Sequence[_Bar]) -> float:
    return median(bar.box[2] for bar in bars)


def _numbered(bars: Sequence[_Bar], widest: float) -> list[_Bar]:
    """The bars of one kind with a number: all, or none; of the widest kind at least every fourth.

    All alike, except for passes that took much less time than the others.
    """
    text = max(len(bar.number) for bar in bars) * _DIGIT_PT
    every = 1 if _width(bars) >= text + _NUMBER_GAP else 4
    narrow = _width(bars) < (text - _NUMBER_GAP if _width(bars) == widest else text + _NUMBER_GAP)
    if narrow or median(bar.box[3] for bar in bars) < _NUMBER_PT + 1:
        return []
    return [
        bar
        for bar in bars
        if int(bar.number) % every == 0 and bar.box[2] >= len(bar.number) * _DIGIT_PT - _NUMBER_GAP
    ]


def _number(bar: _Bar) -> tuple[float, float, str]:
    x, y, width, height = bar.box
    return x + width / 2, y + height / 2 + 0.36 * _NUMBER_PT, bar.number


def _legend(
    drawing: Drawing, charts: Mapping[str, Sequence[Task]], top: float, numbered: bool
) -> None:
    """One box a colour: the input's gradient is the first half of a backward pass."""
    found = _found(charts)
    names: dict[str, list[str]] = {}
    for kind, name in _NAMES.items():
        if kind in {kind for kind, _ in found}:
            names.setdefault(_FILLS[kind], []).append(name)
    key(drawing, {", or ".join(each): fill for fill, each in names.items()}, _LEFT, top)
    notes = ["numbers: micro-batches"] * numbered
    notes += ["lighter: a later chunk"] * any(later for _, later in found)
    if notes:
        drawing.write(_LEFT, top + 26, "; ".join(notes), size=9, colour=style.GREY)


def _found(charts: Mapping[str, Sequence[Task]]) -> set[tuple[str, bool]]:
    """Each kind of pass in the charts, and whether it is of a later chunk."""
    return {(bar.kind, bar.later) for tasks in charts.values() for bar in _bars(tasks, 0, 1, 1)}


def _other(task: Task) -> Task | None:
    """The backward half of an "F&B" pass."""
    return getattr(task, "backward", None)


def _stages(tasks: Sequence[Task]) -> int:
    return 1 + max(task.stage for task in tasks)


def _end(tasks: Sequence[Task]) -> float:
    return max(task.end for task in tasks)


def _time(value: float, seconds: bool) -> str:
    """A duration, or a number of the theory's units."""
    if not seconds:
        return f"{format_number(value, 4)}"
    return f"{format_number(1000 * value, 4)} ms" if value < 1 else f"{format_number(value, 4)} s"
