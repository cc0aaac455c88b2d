"""Streams that share a processor: while several tasks run at once, each gets a part of it.

A task has the time that it takes alone and the part of each resource that it uses then. When the
running tasks need more than there is, they slow down by weighted max-min fairness, the rule by
which networks and operating systems share as well.
Source: Bertsekas and Gallager 1992, "Data Networks", section 6.5.2.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from course_lib.checked import Text, check_public
from course_lib.validation import choice, listed, number

_MOST_TASKS = 500
_DONE = 1e-9  # fraction of a task's work that may be left due to rounding


@dataclass(frozen=True)
class Task:
    """A task in a stream that takes `alone_s` seconds alone, and the resources that it uses.

    `demands` {"processor": 0.9}: it uses nine tenths at full speed. `weight`: its priority when a
    resource is short; a GPU assigns multiprocessors block by block, so a kernel of many blocks has
    a large weight. It starts when the task before it in its stream and all tasks of `after` have
    ended (CUDA's events).
    """

    name: Text
    stream: Text
    alone_s: Annotated[float, partial(number, above=0, most=1000000000.0)]
    demands: Mapping[Text, Annotated[float, partial(number, least=0, most=1)]] = field(
        default_factory=dict
    )
    weight: Annotated[float, partial(number, least=1e-6, most=1e6)] = 1.0
    after: Sequence[Text] = ()

    def __post_init__(self) -> None:
        listed("resources", len(self.demands), "name fewer", most=10)


@dataclass(frozen=True)
class Span:
    """An interval in which a task runs at a constant rate: 1 is its speed alone, 0.5 half of it."""

    task: str
    stream: str
    start_s: float
    end_s: float
    rate: float


@dataclass(frozen=True)
class SharedTimeline:
    """When and how fast each task ran; `ideal_s` is the end time if nothing were shared."""

    tasks: tuple[Task, ...]
    spans: tuple[Span, ...]
    ideal_s: float

    @property
    def total_s(self) -> float:
        """End of the last task, in seconds."""
        return max(span.end_s for span in self.spans)

    @property
    def serial_s(self) -> float:
        """Seconds of all tasks one after another: the sum of their times alone."""
        return sum(task.alone_s for task in self.tasks)

    def start_s(self, name: str) -> float:
        """Start time of a task, in seconds."""
        return min(span.start_s for span in self._of(name))

    def end_s(self, name: str) -> float:
        """End time of a task, in seconds."""
        return max(span.end_s for span in self._of(name))

    def slowdown(self, name: str) -> float:
        """Time of a task over its time alone; 1 if it never had to share."""
        choice("task", name, [task.name for task in self.tasks])
        alone_s = next(task.alone_s for task in self.tasks if task.name == name)
        return (self.end_s(name) - self.start_s(name)) / alone_s

    def waits_s(self, stream: str) -> float:
        """Seconds before `total_s` in which no task of the stream runs."""
        choice("stream", stream, {span.stream for span in self.spans})
        busy_s = sum(span.end_s - span.start_s for span in self.spans if span.stream == stream)
        return max(0.0, self.total_s - busy_s)

    def explain(self) -> str:
        """One line per task: its start, end and slowdown; then the totals."""
        lines = [
            f"{task.name:<22}{task.stream:<16}{1000 * self.start_s(task.name):9.2f} to "
            f"{1000 * self.end_s(task.name):9.2f} ms, {self.slowdown(task.name):5.2f} times alone"
            for task in self.tasks
        ]
        total = (
            f"total {1000 * self.total_s:.2f} ms; {1000 * self.ideal_s:.2f} if nothing were "
            f"shared, {1000 * self.serial_s:.2f} one after another"
        )
        return "\n".join([*lines, total])

    def _of(self, name: str) -> list[Span]:
        choice("task", name, {span.task for span in self.spans})
        return [span for span in self.spans if span.task == name]


def shared_timeline(tasks: Sequence[Task]) -> SharedTimeline:
    """Simulate `tasks`, each stream in the order given, with resources shared by `rates`.

    Raises ValueError for no tasks, duplicate names, and tasks that wait for each other or for a
    task that does not exist.
    """
    listed("tasks", len(tasks), "leave some out", most=_MOST_TASKS)
    if not tasks:
        raise ValueError("tasks holds no task: give at least one")
    names = [task.name for task in tasks]
    for task in tasks:
        if names.count(task.name) > 1:
            raise ValueError(f"task {task.name!r} is there twice: give each its own name")
        for other in task.after:
            choice(f"after of {task.name!r}", other, names)
    unshared = max(span.end_s for span in _run(tasks, shared=False))
    return SharedTimeline(tuple(tasks), tuple(_run(tasks, shared=True)), unshared)


def rates(tasks: Sequence[Task]) -> list[float]:
    """The rate of each task while all of them run at once; 1 is its speed alone.

    All rates grow together, in proportion to the weights. A task stops growing at full speed, or
    when one of its resources is used up; the others go on growing.
    """
    listed("tasks", len(tasks), "leave some out", most=_MOST_TASKS)
    speeds = [0.0] * len(tasks)
    growing = set(range(len(tasks)))
    used = {resource: 0.0 for task in tasks for resource in task.demands}
    while growing:
        growth = {
            resource: sum(tasks[i].weight * tasks[i].demands.get(resource, 0) for i in growing)
            for resource in used
        }
        steps = [(1 - speeds[i]) / tasks[i].weight for i in growing]
        steps += [(1 - used[name]) / part for name, part in growth.items() if part > 0]
        step = max(0.0, min(steps))
        for i in growing:
            speeds[i] += step * tasks[i].weight
        for resource, part in growth.items():
            used[resource] += step * part
        full = {resource for resource, part in used.items() if part > 1 - 1e-12}
        growing = {
            i
            for i in growing
            if speeds[i] < 1 - 1e-12
            and not any(part > 0 and name in full for name, part in tasks[i].demands.items())
        }
    return speeds


def _run(tasks: Sequence[Task], shared: bool) -> list[Span]:
    """The spans of all tasks; rates change only when a task ends."""
    remaining = {task.name: task.alone_s for task in tasks}
    spans: list[Span] = []
    now = 0.0
    while remaining:
        running = _startable(tasks, remaining)
        if not running:
            waiting = ", ".join(remaining)
            raise ValueError(
                f"tasks {waiting} wait for each other: nothing can start, change after"
            )
        speeds = rates(running) if shared else [1.0] * len(running)
        step = min(remaining[it.name] / speed for it, speed in zip(running, speeds, strict=True))
        for task, speed in zip(running, speeds, strict=True):
            spans.append(Span(task.name, task.stream, now, now + step, speed))
            remaining[task.name] -= step * speed
            if remaining[task.name] <= _DONE * task.alone_s:
                del remaining[task.name]
        now += step
    return spans


def _startable(tasks: Sequence[Task], remaining: Collection[str]) -> list[Task]:
    """The first unfinished task of each stream, unless it waits for an unfinished task."""
    first: dict[str, Task] = {}
    for task in tasks:
        if task.name in remaining:
            first.setdefault(task.stream, task)
    return [task for task in first.values() if not any(name in remaining for name in task.after)]


check_public(globals())
