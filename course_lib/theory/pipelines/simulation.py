"""Simulation of a pipeline schedule: the timeline of every stage, its bubble and its memory."""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Annotated, NamedTuple

from course_lib.checked import check_public
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    OVERLAPPED,
    WEIGHT,
    Pass,
    Schedule,
    schedule,
)
from course_lib.trace import FREE, TAKE, Event, Trace
from course_lib.validation import whole


class Task(NamedTuple):
    """A pass with its stage, start and end; `backward` is the other half of an "F&B" task."""

    stage: int
    kind: str
    micro_batch: int
    chunk: int
    start: float
    end: float
    backward: Pass | None = None


@dataclass(frozen=True)
class Timeline:
    """The timed passes of all stages; `tasks` are sorted by stage, then by start."""

    schedule: Schedule
    tasks: tuple[Task, ...]

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.schedule.stages

    @cached_property
    def by_stage(self) -> tuple[tuple[Task, ...], ...]:
        """The tasks of each stage, sorted by start."""
        lists: list[list[Task]] = [[] for _ in range(self.stages)]
        for task in self.tasks:
            lists[task.stage].append(task)
        return tuple(tuple(tasks) for tasks in lists)

    @cached_property
    def makespan(self) -> float:
        """Time from the first start to the last end."""
        return max(task.end for task in self.tasks)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Time that each stage spends computing."""
        return tuple(sum(task.end - task.start for task in tasks) for tasks in self.by_stage)

    @property
    def idle(self) -> tuple[float, ...]:
        """Time that each stage spends waiting: makespan - busy."""
        return tuple(max(0.0, self.makespan - busy) for busy in self.busy)

    @property
    def bubble_time(self) -> float:
        """Idle time per stage, averaged over the stages (equal for equal stages)."""
        return sum(self.idle) / self.stages

    @property
    def bubble_fraction(self) -> float:
        """Bubble as a fraction of the total time: bubble_time / makespan."""
        return self.bubble_time / self.makespan

    @property
    def bubble_over_ideal(self) -> float:
        """Bubble as a fraction of the ideal time: bubble_time / mean busy time."""
        return self.bubble_time * self.stages / sum(self.busy)

    def in_flight(self, stage: int) -> float:
        """Peak number of micro-batches whose activations `stage` holds, counted over its passes.

        Activations are held from the start of the forward pass to the end of B, or of W if the
        backward is split (a convention: I frees some of them earlier). A chunk of an interleaved
        schedule counts as 1 / chunks of a micro-batch.
        """
        whole("stage", stage, least=0, most=self.stages - 1)
        held = most = 0
        for task in self.by_stage[stage]:
            held += task.kind in (FORWARD, OVERLAPPED)
            most = max(most, held)
            held -= task.kind in (BACKWARD, WEIGHT, OVERLAPPED)
        return most / self.schedule.visits

    def repeated(self, turns: Annotated[int, partial(whole, most=1000)]) -> tuple[Task, ...]:
        """The tasks of `turns` successive batches; each starts after the previous one is flushed.

        Each turn shifts micro-batch numbers by one batch and times by one makespan.
        """
        size = self.schedule.micro_batches
        return tuple(
            task._replace(
                micro_batch=task.micro_batch + turn * size,
                start=task.start + turn * self.makespan,
                end=task.end + turn * self.makespan,
                backward=task.backward
                and task.backward._replace(micro_batch=task.backward.micro_batch + turn * size),
            )
            for turn in range(turns)
            for task in self.tasks
        )


# --- From a schedule's order of passes to its timeline ---


class Deadlock(ValueError):
    """Raised for orders in which stages wait for each other forever."""


def timeline(
    name: str,
    stages: int,
    micro_batches: int,
    virtual_stages: int = 1,
    *,
    group: int | None = None,
    times: PassTimes | None = None,
) -> Timeline:
    """The timeline of schedule `name` (one of SCHEDULES); `times` None: forward 1, backward 2."""
    plan = schedule(name, stages, micro_batches, virtual_stages, group=group)
    return simulate(plan, times or PassTimes())


def simulate(plan: Schedule, times: PassTimes) -> Timeline:
    """Run each stage's passes in the given order, each as soon as its inputs have arrived.

    A forward pass needs that of the previous piece of the model; a backward pass its own forward
    pass and the backward pass of the next piece; W needs its I. Raises Deadlock (a ValueError) for
    orders that cannot finish.
    """
    return _Simulation(plan, times).run()


class _Simulation:
    """State of `simulate`: the end of each pass, and the pass for which each stage waits."""

    def __init__(self, plan: Schedule, times: PassTimes) -> None:
        self.plan = plan
        self.durations = [
            {kind: seconds / plan.visits for kind, seconds in stage.items()}
            for stage in times.of(plan.stages)
        ]
        self.hop = times.transfer  # time of a message to another stage
        self.ended: dict[tuple[str, int, int], float] = {}
        self.waiting: dict[tuple[str, int, int], int] = {}

    def run(self) -> Timeline:
        """Advance every stage until all orders are done."""
        done: list[list[Task]] = [[] for _ in self.plan.orders]
        ready = list(range(self.plan.stages))
        while ready:
            self._advance(ready.pop(), done, ready)
        if self.waiting:
            raise Deadlock(self._deadlock())
        return Timeline(self.plan, tuple(task for tasks in done for task in tasks))

    def _advance(self, stage: int, done: list[list[Task]], ready: list[int]) -> None:
        """Run the passes of `stage` until one has to wait; put woken stages into `ready`."""
        tasks, order = done[stage], self.plan.orders[stage]
        now = tasks[-1].end if tasks else 0.0
        for work in order[len(tasks) :]:
            start = now
            for key, delay in self._needs(stage, work):
                arrived = self.ended.get(key)
                if arrived is None:
                    self.waiting[key] = stage
                    return
                start = max(start, arrived + delay)
            now = start + self.durations[stage][work.kind]
            tasks.append(Task(stage, *work[:3], start, now, work.backward))
            for key in self._makes(stage, work):
                if key in self.ended:
                    raise ValueError(
                        f"the order runs {key[0]} of micro-batch {key[1]} twice on stage {stage}: "
                        "leave one of the two"
                    )
                self.ended[key] = now
                if key in self.waiting:
                    ready.append(self.waiting.pop(key))

    def _needs(self, stage: int, work: Pass) -> list[tuple[tuple[str, int, int], float]]:
        """The passes that `work` needs, each with the transfer time of its result."""
        if work.kind == OVERLAPPED:
            return [need for part in work.parts for need in self._needs(stage, part)]
        kind, i, chunk, _ = work
        piece = self.plan.pieces[stage][chunk]
        if kind == WEIGHT:
            return [((BACKWARD, i, piece), 0.0)]
        own = [] if kind == FORWARD else [((FORWARD, i, piece), 0.0)]
        other = piece + (-1 if kind == FORWARD else 1)
        if other // self.plan.length != piece // self.plan.length:
            return own  # first or last piece of the model
        hop = 0.0 if self.plan.homes[other] == stage else self.hop
        return [*own, ((FORWARD if kind == FORWARD else BACKWARD, i, other), hop)]

    def _makes(self, stage: int, work: Pass) -> list[tuple[str, int, int]]:
        """The results for which other passes wait; I and B produce the same input gradient."""
        if work.kind == OVERLAPPED:
            return [made for part in work.parts for made in self._makes(stage, part)]
        kind, i, chunk, _ = work
        if kind == WEIGHT:
            return []
        return [(FORWARD if kind == FORWARD else BACKWARD, i, self.plan.pieces[stage][chunk])]

    def _deadlock(self) -> str:
        waits = [
            f"stage {stage} for {kind} of micro-batch {i} on stage {self.plan.homes[piece]}"
            for (kind, i, piece), stage in sorted(self.waiting.items(), key=lambda item: item[1])
        ]
        return (
            f"the orders deadlock, waiting are {'; '.join(waits[:4])}: "
            "run each of these passes, and run it before what depends on it"
        )


# --- A pipeline as a trace: passes, activations held, and messages of each stage ---

DOES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "input's gradient",
    WEIGHT: "weights' gradient",
}


def pipeline_trace(line: Timeline) -> Trace:
    """A trace with the passes of `line`, the activations held, and the messages sent.

    A part is (micro-batch, chunk of the stage); the two halves of an "F&B" run at the same time.
    Activations are taken when a forward pass starts and freed at the end of B, or of W if the
    backward is split: the convention of `Timeline.in_flight`. Each counts as one byte. A message,
    "activations" or "gradients", is sent when its pass ends.
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
    """The distinct start and end times, merging those that differ only by rounding."""
    tolerance = 1e-9 * line.makespan
    distinct: list[float] = []
    for time in sorted({time for task in line.tasks for time in (task.start, task.end)}):
        if not distinct or time - distinct[-1] > tolerance:
            distinct.append(time)
    return distinct


def _events(plan: Schedule, task: Task, start: float, end: float) -> Iterator[Event]:
    for half in Pass(task.kind, task.micro_batch, task.chunk, task.backward).parts:
        part, label = (half.micro_batch, half.chunk), str(half.micro_batch)
        if half.kind == FORWARD:
            yield Event(start, task.stage, TAKE, part, bytes=1, label=label)
        yield Event(start, task.stage, DOES[half.kind], part, end=end, label=label)
        if half.kind in (BACKWARD, WEIGHT):
            yield Event(end, task.stage, FREE, part)
        onward = half.kind == FORWARD
        piece, step = plan.pieces[task.stage][half.chunk], 1 if onward else -1
        if half.kind == WEIGHT or (piece + step) // plan.length != piece // plan.length:
            continue  # nothing to send, or the first or last piece of the model
        receiver = plan.homes[piece + step]
        if receiver != task.stage:
            what = "activations" if onward else "gradients"
            yield Event(end, task.stage, what, part, receiver, label=label)


check_public(globals())
