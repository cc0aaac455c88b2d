"""What each pipeline stage does and when: one row a stage, one box a pass."""

from collections.abc import Iterator, Mapping, Sequence

from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.theory.inputs.units import format_duration, format_number
from course_lib.theory.pipelines.simulation import Task
from course_lib.trace import Event

_ROWS_HEIGHT, _ROW_LEAST, _NUMBER_PT = 190, 5, 7.5  # height of all charts' rows together; of one
# The kinds of pass of theory.pipelines.schedules.
_WORDS = {"F": "forward", "B": "backward", "I": "input's gradient", "W": "weights' gradient"}


def timeline(charts: Mapping[str, Sequence[Task]], seconds: bool = True) -> Drawing:
    """One chart under another on the same scale: {"predicted": tasks, "measured": tasks}.

    Time starts at 0, in seconds, or in any unit. The number in a box is its micro-batch, where
    there is room.
    """
    longest = max(task.end for tasks in charts.values() for task in tasks)
    room = _ROWS_HEIGHT / len(charts)
    blocks = [_chart(name, tasks, longest, room, seconds) for name, tasks in charts.items()]
    found = {word for block in blocks for word in block.words}
    notes = ["numbers: micro-batches"] * any(block.numbered for block in blocks)
    notes += ["lighter: a later chunk"] * any(word.startswith("later ") for word in found)
    shown = [word for word in _WORDS.values() if {word, f"later {word}"} & found]
    return page("", *blocks, key=shown, notes=["; ".join(notes)])


def _chart(name: str, tasks: Sequence[Task], longest: float, room: float, seconds: bool) -> Lanes:
    stages = 1 + max(task.stage for task in tasks)
    rows: dict[str, list[Event]] = {f"stage {stage}": [] for stage in range(stages)}
    for task in tasks:
        rows[f"stage {task.stage}"] += _events(task)
    end = max(task.end for task in tasks)
    numbers = {event.label for its in rows.values() for event in its}
    told = format_duration if seconds else lambda time: format_number(time, 4)
    sizes = f"{counted(stages, 'stage')}, {counted(len(numbers), 'micro-batch')}"
    return Lanes(
        rows,
        name=name,
        over=(0.0, longest),
        high=max(_ROW_LEAST, room / stages),
        label_pt=_NUMBER_PT,
        told=told,
        ground=True,
        sentence=f"{name}: {sizes}, from 0 to {told(end)}",
    )


def _events(task: Task) -> Iterator[Event]:
    """One, or the two halves of an "F&B"; later chunks are lighter."""
    other = task.backward
    for half, kind in ((task, "F"), (other, other.kind)) if other else ((task, task.kind),):
        word = ("later " if half.chunk else "") + _WORDS[kind]
        yield Event(task.start, task.stage, word, end=task.end, label=str(half.micro_batch))
