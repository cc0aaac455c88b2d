"""What each pipeline stage does and when: one row a stage, one box a pass."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from course_lib.figures import style
from course_lib.figures.drawing import Drawing
from course_lib.figures.picture import WIDTH_PT, Box
from course_lib.figures.text import counted

_LEFT = 58
_RIGHT = WIDTH_PT - 4
_HEAD = 22  # above the rows of a chart: its name
_FOOT = 18  # below them: its time
_LEGEND = 18
_LEGEND_COLUMNS = 2
_ROWS_HEIGHT = 190  # of a chart, at most, unless its rows are already as low as possible
_ROW_MOST, _ROW_LEAST = 22, 5
_NAME_ROOM = 11  # height of a row that leaves room for its name
_NUMBER_PT = 7.5
_DIGIT_PT = 0.64 * _NUMBER_PT  # width of a digit in DejaVu Sans

# The kinds of pass of theory.pipelines.schedules. Later chunks are darker, with white numbers.
_NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "gradient of the input",
    "W": "gradient of the weights",
}
_LOOKS = {
    "F": (style.SKY, style.BLUE, None),
    "B": (style.ORANGE, style.VERMILION, "/"),
    "I": (style.PINK, style.VERMILION, "\\"),
    "W": (style.YELLOW, style.GREEN, "-"),
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
    looks = _looks(charts)
    legend = -(-len(looks) // _LEGEND_COLUMNS) * _LEGEND
    heights = [_HEAD + _row(tasks) * _stages(tasks) + _FOOT for tasks in charts.values()]
    drawing = Drawing(sum(heights) + legend + 6, _sentence(charts, seconds))
    top = 0.0
    for (name, tasks), height in zip(charts.items(), heights, strict=True):
        _chart(drawing, name, tasks, top, (_RIGHT - _LEFT) / end, seconds)
        top += height
    _legend(drawing, looks, top + 4)
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
    drawing: Drawing, name: str, tasks: Sequence[Task], top: float, scale: float, seconds: bool
) -> None:
    row, stages = _row(tasks), _stages(tasks)
    drawing.write(0, top + 14, name, size=style.TITLE_PT, bold=True)
    top += _HEAD
    every = -(-_NAME_ROOM // row) if row < _NAME_ROOM else 1
    names = [
        (_LEFT - 6.0, top + (stage + 0.5) * row + 3.5, f"stage {stage}")
        for stage in range(0, stages, int(every))
    ]
    drawing.write_all(names, size=9, align="right")
    groups: dict[tuple[str, bool], list[_Bar]] = {}
    for bar in _bars(tasks, top, row, scale):
        groups.setdefault((bar.kind, bar.later), []).append(bar)
    bottom, end = top + stages * row, _LEFT + _end(tasks) * scale
    drawing.boxes([(_LEFT, top, end - _LEFT, stages * row)], style.PALE, edge=style.GREY)
    for (kind, later), bars in groups.items():
        early_fill, late_fill, hatch = _LOOKS[kind]
        drawing.boxes([bar.box for bar in bars], late_fill if later else early_fill, hatch)
    for later, ink in ((False, style.INK), (True, style.WHITE)):
        numbers = [
            _number(bar)
            for (_, group_later), bars in groups.items()
            for bar in bars
            if group_later == later and _has_room(bar)
        ]
        if numbers:
            drawing.write_all(numbers, size=_NUMBER_PT, align="center", colour=ink, bold=True)
    drawing.write(_LEFT, bottom + 12, "0", size=9, colour=style.GREY)
    if end > _LEFT + 60:
        time = _time(_end(tasks), seconds)
        drawing.write(end, bottom + 12, time, size=9, align="right", colour=style.GREY)


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


def _has_room(bar: _Bar) -> bool:
    _, _, width, height = bar.box
    return height >= _NUMBER_PT + 1 and width >= len(bar.number) * _DIGIT_PT + 1


def _number(bar: _Bar) -> tuple[float, float, str]:
    x, y, width, height = bar.box
    return x + width / 2, y + height / 2 + 0.36 * _NUMBER_PT, bar.number


def _looks(charts: Mapping[str, Sequence[Task]]) -> list[tuple[str, bool]]:
    """The looks that occur, in the order of the legend."""
    found = {(bar.kind, bar.later) for tasks in charts.values() for bar in _bars(tasks, 0, 1, 1)}
    return sorted(found, key=lambda look: (list(_NAMES).index(look[0]), look[1]))


def _legend(drawing: Drawing, looks: list[tuple[str, bool]], top: float) -> None:
    for place, (kind, later) in enumerate(looks):
        line, column = divmod(place, _LEGEND_COLUMNS)
        x = _LEFT + column * (_RIGHT - _LEFT) / _LEGEND_COLUMNS
        y = top + line * _LEGEND
        early_fill, late_fill, hatch = _LOOKS[kind]
        drawing.boxes([(x, y, 14, 11)], late_fill if later else early_fill, hatch)
        drawing.write(x + 19, y + 9, _NAMES[kind] + ", later chunk" * later, size=9)


def _other(task: Task) -> Task | None:
    """The backward half of an "F&B" pass."""
    return getattr(task, "backward", None)


def _stages(tasks: Sequence[Task]) -> int:
    return 1 + max(task.stage for task in tasks)


def _end(tasks: Sequence[Task]) -> float:
    return max(task.end for task in tasks)


def _row(tasks: Sequence[Task]) -> float:
    return max(_ROW_LEAST, min(_ROW_MOST, _ROWS_HEIGHT / _stages(tasks)))


def _time(value: float, seconds: bool) -> str:
    """A duration, or a number of the theory's units."""
    if not seconds:
        return f"{value:.4g}"
    return f"{1000 * value:.4g} ms" if value < 1 else f"{value:.4g} s"
