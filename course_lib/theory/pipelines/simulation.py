"""Pipelines in time: a schedule's order of passes becomes a timeline; bubble and memory follow."""

from course_lib.checked import checked
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.schedules import (
    BACKWARD,
    FORWARD,
    OVERLAPPED,
    WEIGHT,
    Pass,
    Schedule,
    schedule,
)
from course_lib.theory.pipelines.timeline import Task, Timeline


class Deadlock(ValueError):
    """Orders in which stages wait for each other without end."""


@checked
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


@checked
def simulate(plan: Schedule, times: PassTimes) -> Timeline:
    """Run each stage's passes in the given order, each as soon as what it needs has arrived.

    A forward pass needs the one before it in the model; a backward pass its own forward pass and
    the backward pass after it in the model; W needs its I. Raises Deadlock (a ValueError) for
    orders that can't finish.
    """
    return _Simulation(plan, times).run()


class _Simulation:
    """The state of `simulate`: when each pass ended, and which stage waits for which pass."""

    def __init__(self, plan: Schedule, times: PassTimes) -> None:
        self.plan = plan
        self.durations = [
            {kind: seconds / plan.visits for kind, seconds in stage.items()}
            for stage in times.of(plan.stages)
        ]
        self.hop = times.transfer  # to another stage
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
        """The passes that `work` needs, each with the time until its result is here."""
        if work.kind == OVERLAPPED:
            return [need for part in work.parts for need in self._needs(stage, part)]
        kind, i, chunk, _ = work
        piece = self.plan.pieces[stage][chunk]
        if kind == WEIGHT:
            return [((BACKWARD, i, piece), 0.0)]
        own = [] if kind == FORWARD else [((FORWARD, i, piece), 0.0)]
        other = piece + (-1 if kind == FORWARD else 1)
        if other // self.plan.length != piece // self.plan.length:
            return own  # an end of the way
        hop = 0.0 if self.plan.homes[other] == stage else self.hop
        return [*own, ((FORWARD if kind == FORWARD else BACKWARD, i, other), hop)]

    def _makes(self, stage: int, work: Pass) -> list[tuple[str, int, int]]:
        """The results that others wait for; I and B make the same gradient of the input."""
        if work.kind == OVERLAPPED:
            return [made for part in work.parts for made in self._makes(stage, part)]
        kind, i, chunk, _ = work
        if kind == WEIGHT:
            return []
        return [(FORWARD if kind == FORWARD else BACKWARD, i, self.plan.pieces[stage][chunk])]

    def _deadlock(self) -> str:
        waits = []
        for (kind, i, piece), stage in sorted(self.waiting.items(), key=lambda item: item[1]):
            at = self.plan.homes[piece]
            waits.append(f"stage {stage} for {kind} of micro-batch {i} on stage {at}")
        return (
            f"the orders deadlock, waiting are {'; '.join(waits[:4])}: "
            "run each of these passes, and run it before what depends on it"
        )
