"""Streams that share a processor: while several tasks run at once, each gets a part of it.

A task says how long it takes alone and how much of each resource it uses then. Where the running
tasks want more than there is, they slow down: that is weighted max-min fairness, the rule by which
networks and operating systems share as well.
Source: Bertsekas and Gallager 1992, "Data Networks", section 6.5.2.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from course_lib.checked import Text, check_public
from course_lib.validation import choice, listed, number

_MOST_TASKS = 500
_DONE = 1e-9  # of a task's work: what is left to rounding


@dataclass(frozen=True)
class Task:
    """`alone_s` seconds of work in a stream, and the part of each resource that it uses alone.

    `demands` {"processor": 0.9}: nine tenths while it runs at full speed. `weight`: how strongly it
    is preferred where there is not enough; a GPU hands out its multiprocessors block by block, so a
    kernel of many blocks has a large weight. It starts when the task before it in its stream and
    all tasks of `after` have ended (events, in CUDA's words).
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
    """A stretch of time in which a task runs at one rate: 1 alone, 0.5 at half speed."""

    task: str
    stream: str
    start_s: float
    end_s: float
    rate: float


@dataclass(frozen=True)
class SharedTimeline:
    """What ran when, and how fast; `ideal_s` is the end if nothing were shared."""

    tasks: tuple[Task, ...]
    spans: tuple[Span, ...]
    ideal_s: float

    @property
    def total_s(self) -> float:
        """When the last task has ended."""
        return max(span.end_s for span in self.spans)

    @property
    def serial_s(self) -> float:
        """All tasks one after another: the sum of their times alone."""
        return sum(task.alone_s for task in self.tasks)

    def start_s(self, name: str) -> float:
        """When a task starts."""
        return min(span.start_s for span in self._of(name))

    def end_s(self, name: str) -> float:
        """When a task ends."""
        return max(span.end_s for span in self._of(name))

    def slowdown(self, name: str) -> float:
        """Its time over its time alone, 1 where nobody is in its way."""
        choice("task", name, [task.name for task in self.tasks])
        alone_s = next(task.alone_s for task in self.tasks if task.name == name)
        return (self.end_s(name) - self.start_s(name)) / alone_s

    def waits_s(self, stream: str) -> float:
        """Time until the end of everything in which a stream has nothing to do, or must wait."""
        choice("stream", stream, {span.stream for span in self.spans})
        busy_s = sum(span.end_s - span.start_s for span in self.spans if span.stream == stream)
        return max(0.0, self.total_s - busy_s)

    def explain(self) -> str:
        """One line per task: when, and how much slower than alone; then the totals."""
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
    """Run `tasks`, each stream in the order given, with resources shared by `rates`.

    Raises ValueError for no tasks, two of one name, and tasks that wait for each other or for one
    that does not exist.
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
    """How fast each of some tasks runs while all of them run: 1 is its speed alone.

    All rates grow together, in proportion to the weights, until a task runs at full speed or one of
    its resources is used up; the others go on growing.
    """
    listed("tasks", len(tasks), "leave some out", most=_MOST_TASKS)
    found = [0.0] * len(tasks)
    growing = set(range(len(tasks)))
    used = {resource: 0.0 for task in tasks for resource in task.demands}
    while growing:
        wanted = {
            resource: sum(tasks[it].weight * tasks[it].demands.get(resource, 0) for it in growing)
            for resource in used
        }
        steps = [(1 - found[it]) / tasks[it].weight for it in growing]
        steps += [(1 - used[its]) / part for its, part in wanted.items() if part > 0]
        step = max(0.0, min(steps))
        for it in growing:
            found[it] += step * tasks[it].weight
        for resource, part in wanted.items():
            used[resource] += step * part
        full = {resource for resource, part in used.items() if part > 1 - 1e-12}
        growing = {
            it
            for it in growing
            if found[it] < 1 - 1e-12
            and not any(part > 0 and its in full for its, part in tasks[it].demands.items())
        }
    return found


def _run(tasks: Sequence[Task], shared: bool) -> list[Span]:
    """The spans of all tasks: between two ends of tasks no rate changes."""
    left = {task.name: task.alone_s for task in tasks}
    spans: list[Span] = []
    now = 0.0
    while left:
        running = _startable(tasks, left)
        if not running:
            waiting = ", ".join(left)
            raise ValueError(
                f"tasks {waiting} wait for each other: nothing can start, change after"
            )
        speeds = rates(running) if shared else [1.0] * len(running)
        step = min(left[it.name] / speed for it, speed in zip(running, speeds, strict=True))
        for task, speed in zip(running, speeds, strict=True):
            spans.append(Span(task.name, task.stream, now, now + step, speed))
            left[task.name] -= step * speed
            if left[task.name] <= _DONE * task.alone_s:
                del left[task.name]
        now += step
    return spans


def _startable(tasks: Sequence[Task], left: Collection[str]) -> list[Task]:
    """The first unfinished task of each stream, if what it waits for has ended."""
    first: dict[str, Task] = {}
    for task in tasks:
        if task.name in left:
            first.setdefault(task.stream, task)
    return [task for task in first.values() if not any(name in left for name in task.after)]


check_public(globals())
