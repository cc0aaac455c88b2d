"""A pipeline moment by moment: what each stage runs and holds, and which messages leave."""

from bisect import bisect
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from course_lib.checked import checked
from course_lib.theory.pipelines.schedules import BACKWARD, FORWARD, WEIGHT, Schedule
from course_lib.theory.pipelines.timeline import Task, Timeline


class Held(NamedTuple):
    """The activations of one micro-batch in one chunk of a stage."""

    micro_batch: int
    chunk: int


class Message(NamedTuple):
    """What a pass has just made for a neighbour: "activations", or "gradients" going back."""

    kind: str
    micro_batch: int
    sender: int
    receiver: int


@dataclass(frozen=True)
class AtStage:
    """One stage at a moment: its pass (None: it waits), what it holds, and the most so far.

    `most` counts micro-batches as `Timeline.in_flight` does: a chunk of an interleaved schedule is
    a part of one.
    """

    running: Task | None
    held: tuple[Held, ...]
    most: float


@dataclass(frozen=True)
class Moment:
    """A time at which a pass starts or ends, and all stages right after it."""

    time: float
    stages: tuple[AtStage, ...]
    sent: tuple[Message, ...]


@checked
def pipeline_moments(line: Timeline) -> tuple[Moment, ...]:
    """Every moment of `line`, from the first start to the last end.

    Activations are held from the start of a forward pass to the end of B, or of W where the
    backward is split: the convention of `Timeline.in_flight`, which is the largest `most`.
    """
    times = _times(line)
    held: list[list[Held]] = [[] for _ in range(line.stages)]
    most = [0.0] * line.stages
    starts, ends = _by_time(line, times)
    running: list[Task | None] = [None] * line.stages
    moments = []
    for place, time in enumerate(times):
        for task in ends[place]:
            running[task.stage] = None
            _release(held[task.stage], task)
        for task in starts[place]:
            running[task.stage] = task
            _take(held[task.stage], task)
            most[task.stage] = max(most[task.stage], len(held[task.stage]) / line.schedule.visits)
        sent = tuple(letter for task in ends[place] for letter in _messages(line.schedule, task))
        stages = tuple(
            AtStage(running[stage], tuple(sorted(held[stage])), most[stage])
            for stage in range(line.stages)
        )
        moments.append(Moment(time, stages, sent))
    return tuple(moments)


def _times(line: Timeline) -> list[float]:
    """The distinct times; sums of thirds that differ by rounding count once."""
    nearly = 1e-9 * line.makespan
    found: list[float] = []
    for time in sorted({time for task in line.tasks for time in (task.start, task.end)}):
        if not found or time - found[-1] > nearly:
            found.append(time)
    return found


def _by_time(line: Timeline, times: list[float]) -> tuple[list[list[Task]], list[list[Task]]]:
    """The passes that start, and those that end, at each of the times."""
    starts: list[list[Task]] = [[] for _ in times]
    ends: list[list[Task]] = [[] for _ in times]
    middles = [(early + late) / 2 for early, late in pairwise(times)]

    def place(time: float) -> int:
        return bisect(middles, time)

    for task in line.tasks:
        starts[place(task.start)].append(task)
        ends[place(task.end)].append(task)
    return starts, ends


def _parts(task: Task) -> list[tuple[str, Held]]:
    """The kinds of pass in a task, each with its micro-batch: two in an "F&B"."""
    kind = FORWARD if task.backward else task.kind
    parts = [(kind, Held(task.micro_batch, task.chunk))]
    if task.backward:
        parts.append((task.backward.kind, Held(task.backward.micro_batch, task.backward.chunk)))
    return parts


def _take(held: list[Held], task: Task) -> None:
    held += [what for kind, what in _parts(task) if kind == FORWARD]


def _release(held: list[Held], task: Task) -> None:
    for kind, what in _parts(task):
        if kind in (BACKWARD, WEIGHT):
            held.remove(what)


def _messages(plan: Schedule, task: Task) -> list[Message]:
    """What neighbours get from a pass that has ended; W makes nothing for them."""
    found = []
    for kind, what in _parts(task):
        if kind == WEIGHT:
            continue
        onward = kind == FORWARD
        receiver = _neighbour(plan, task.stage, what.chunk, 1 if onward else -1)
        if receiver is not None and receiver != task.stage:
            name = "activations" if onward else "gradients"
            found.append(Message(name, what.micro_batch, task.stage, receiver))
    return found


def _neighbour(plan: Schedule, stage: int, chunk: int, step: int) -> int | None:
    """The stage that has the next (step 1) or the previous (-1) piece of the model."""
    piece = plan.pieces[stage][chunk]
    same_way = (piece + step) // plan.length == piece // plan.length
    return plan.homes[piece + step] if same_way else None
