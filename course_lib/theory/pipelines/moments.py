"""A pipeline as a trace: what each stage runs and holds, and which messages leave."""

from bisect import bisect
from collections.abc import Iterator
from itertools import pairwise

from course_lib.checked import checked
from course_lib.theory.pipelines.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Pass,
    Schedule,
)
from course_lib.theory.pipelines.timeline import Task, Timeline
from course_lib.trace import FREE, TAKE, Event, Trace

DOES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "input's gradient",
    WEIGHT: "weights' gradient",
}


@checked
def pipeline_trace(line: Timeline) -> Trace:
    """The passes of `line`, what stages hold meanwhile, and what they send.

    A part is (micro-batch, chunk of the stage); the two halves of an "F&B" run at the same time.
    Activations are taken when a forward pass starts and freed at the end of B, or of W where the
    backward is split: the convention of `Timeline.in_flight`. Each counts as one byte. A message,
    "activations" or "gradients", leaves when its pass has ended.
    """
    times = _times(line)
    middles = [(early + late) / 2 for early, late in pairwise(times)]
    return Trace(
        event
        for task in line.tasks
        for event in _events(
            line.schedule,
            task,
            times[bisect(middles, task.start)],
            times[bisect(middles, task.end)],
        )
    )


def _times(line: Timeline) -> list[float]:
    """The distinct times; sums of thirds that differ by rounding count once."""
    nearly = 1e-9 * line.makespan
    found: list[float] = []
    for time in sorted({time for task in line.tasks for time in (task.start, task.end)}):
        if not found or time - found[-1] > nearly:
            found.append(time)
    return found


def _events(plan: Schedule, task: Task, start: float, end: float) -> Iterator[Event]:
    for half in Pass(task.kind, task.micro_batch, task.chunk, task.backward).parts:
        part, label = (half.micro_batch, half.chunk), str(half.micro_batch)
        if half.kind == FORWARD:
            yield Event(start, task.stage, TAKE, part, bytes=1, label=label)
        yield Event(start, task.stage, DOES[half.kind], part, end=end, label=label)
        if half.kind in (BACKWARD, WEIGHT):
            yield Event(end, task.stage, FREE, part)
        onward = half.kind == FORWARD
        receiver = _neighbour(plan, task.stage, half.chunk, 1 if onward else -1)
        if half.kind != WEIGHT and receiver not in (None, task.stage):
            what = "activations" if onward else "gradients"
            yield Event(end, task.stage, what, part, receiver, label=label)


def _neighbour(plan: Schedule, stage: int, chunk: int, step: int) -> int | None:
    """The stage that has the next (step 1) or the previous (-1) piece of the model."""
    piece = plan.pieces[stage][chunk]
    same_way = (piece + step) // plan.length == piece // plan.length
    return plan.homes[piece + step] if same_way else None
