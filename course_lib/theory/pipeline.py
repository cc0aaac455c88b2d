"""Pipelines in time: a schedule's order of passes becomes a timeline; bubble and memory follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from course_lib.theory.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    OVERLAPPED,
    WEIGHT,
    Pass,
    Schedule,
    schedule,
)
from course_lib.theory.validation import number, whole


@dataclass(frozen=True)
class StageTimes:
    """Seconds (or any unit) that one micro-batch takes on one stage, with all its chunks.

    Each is one number for all stages or one per stage. `backward` is the whole backward pass and
    `weight` the part of it for the gradients of the weights (default: half); `overlapped` is a
    forward and a backward pass run together (default: their sum). `transfer` is the time from a
    stage to its neighbour; sending costs the sender nothing.
    """

    forward: float | tuple[float, ...] = 1.0
    backward: float | tuple[float, ...] = 2.0
    weight: float | tuple[float, ...] | None = None
    overlapped: float | tuple[float, ...] | None = None
    transfer: float = 0.0

    def __post_init__(self) -> None:
        number("transfer", self.transfer, least=0)
        for name in ("forward", "backward", "weight", "overlapped"):
            value = getattr(self, name)
            if isinstance(value, Sequence):
                object.__setattr__(self, name, tuple(value))
                for stage, item in enumerate(value):
                    _duration(name, f"{name}[{stage}]", item)
            elif value is not None or name in ("forward", "backward"):
                _duration(name, name, value)

    def of(self, stages: int) -> list[dict[str, float]]:
        """Duration by kind of pass, for each stage; ValueError if the stages differ in number."""
        forward, backward = self._each("forward", stages), self._each("backward", stages)
        weight = self._each("weight", stages) or [full / 2 for full in backward]
        both = self._each("overlapped", stages)
        both = both or [f + b for f, b in zip(forward, backward, strict=True)]
        for stage in range(stages):
            if weight[stage] > backward[stage]:
                raise ValueError(
                    f"weight {weight[stage]} is part of backward {backward[stage]} "
                    f"on stage {stage}: give at most that"
                )
        return [
            {FORWARD: f, BACKWARD: b, INPUT: b - w, WEIGHT: w, OVERLAPPED: o}
            for f, b, w, o in zip(forward, backward, weight, both, strict=True)
        ]

    def _each(self, name: str, stages: int) -> list[float]:
        value = getattr(self, name)
        if value is None:
            return []
        if isinstance(value, tuple) and len(value) != stages:
            raise ValueError(
                f"{name} has {len(value)} values for {stages} stages: give one per stage"
            )
        return list(value) if isinstance(value, tuple) else [value] * stages


def _duration(kind: str, name: str, value: object) -> None:
    """A pass takes time; only its part for the weights may take none."""
    number(name, value, **({"least": 0} if kind == "weight" else {"above": 0}))


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
    """What every stage does and when; `tasks` by stage, then by start."""

    schedule: Schedule
    tasks: tuple[Task, ...]

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return self.schedule.stages

    @cached_property
    def by_stage(self) -> tuple[tuple[Task, ...], ...]:
        """The tasks of each stage in the order of time."""
        lists: list[list[Task]] = [[] for _ in range(self.stages)]
        for task in self.tasks:
            lists[task.stage].append(task)
        return tuple(tuple(tasks) for tasks in lists)

    @cached_property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max(task.end for task in self.tasks)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Time in which each stage computes."""
        return tuple(sum(task.end - task.start for task in tasks) for tasks in self.by_stage)

    @property
    def idle(self) -> tuple[float, ...]:
        """Time in which each stage waits: makespan - busy."""
        return tuple(max(0.0, self.makespan - busy) for busy in self.busy)

    @property
    def bubble_time(self) -> float:
        """Idle time of a stage, on average over the stages (equal for equal stages)."""
        return sum(self.idle) / self.stages

    @property
    def bubble_fraction(self) -> float:
        """Bubble as a fraction of the whole time: bubble_time / makespan."""
        return self.bubble_time / self.makespan

    @property
    def bubble_over_ideal(self) -> float:
        """Bubble over the time without one: bubble_time / average busy time."""
        return self.bubble_time * self.stages / sum(self.busy)

    def in_flight(self, stage: int) -> float:
        """Most micro-batches whose activations `stage` holds at once, counted over its passes.

        Held from the start of the forward pass to the end of B, or of W where the backward is
        split (a convention: I frees some of it earlier). A chunk of an interleaved schedule is
        1 / chunks of a micro-batch.
        """
        whole("stage", stage, least=0, most=self.stages - 1)
        held = most = 0
        for task in self.by_stage[stage]:
            held += task.kind in (FORWARD, OVERLAPPED)
            most = max(most, held)
            held -= task.kind in (BACKWARD, WEIGHT, OVERLAPPED)
        return most if self.schedule.both_ways else most / self.schedule.chunks

    def explain(self) -> str:
        """Totals, then busy and idle time and the micro-batches in flight of each stage."""
        plan = self.schedule
        lines = [
            f"{plan.name}: {self.stages} stages, {plan.micro_batches} micro-batches",
            f"makespan {self.makespan:.6g} = busy {self.makespan - self.bubble_time:.6g} "
            f"+ bubble {self.bubble_time:.6g} (average of the stages)",
            f"bubble / makespan {self.bubble_fraction:.2%}, / ideal {self.bubble_over_ideal:.2%}",
        ]
        for stage in range(self.stages):
            lines.append(
                f"stage {stage:<4} busy {self.busy[stage]:<10.6g} idle {self.idle[stage]:<10.6g} "
                f"in flight {self.in_flight(stage):g}"
            )
        return "\n".join(lines)


class Deadlock(ValueError):
    """Orders in which stages wait for each other for ever."""


def timeline(
    name: str,
    stages: int,
    micro_batches: int,
    virtual_stages: int = 1,
    times: StageTimes | None = None,
) -> Timeline:
    """The timeline of schedule `name` (one of SCHEDULES); `times` None: forward 1, backward 2."""
    return simulate(schedule(name, stages, micro_batches, virtual_stages), times or StageTimes())


def simulate(plan: Schedule, times: StageTimes) -> Timeline:
    """Run each stage's passes in the given order, each as soon as what it needs has arrived.

    A forward pass needs the one before it in the model; a backward pass its own forward pass and
    the backward pass after it in the model; W needs its I. Raises Deadlock (a ValueError) for
    orders that can't finish.
    """
    return _Simulation(plan, times).run()


class _Simulation:
    """The state of `simulate`: when each pass ended, and which stage waits for which pass."""

    def __init__(self, plan: Schedule, times: StageTimes) -> None:
        self.plan = plan
        share = 1 if plan.both_ways else plan.chunks
        self.durations = [
            {kind: seconds / share for kind, seconds in stage.items()}
            for stage in times.of(plan.stages)
        ]
        self.depth = plan.stages * share  # places that a micro-batch visits
        self.hop = times.transfer if plan.stages > 1 else 0.0
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

    def _place(self, stage: int, chunk: int) -> int:
        """How many parts of the model come before `chunk` of `stage`."""
        stages = self.plan.stages
        if self.plan.both_ways:
            return stages - 1 - stage if chunk else stage
        return chunk * stages + stage

    def _needs(self, stage: int, work: Pass) -> list[tuple[tuple[str, int, int], float]]:
        """The passes that `work` needs, each with the time until its result is here."""
        kind, i, chunk, other = work
        place = self._place(stage, chunk)
        if kind == WEIGHT:
            return [((BACKWARD, i, place), 0.0)]
        if kind == FORWARD:
            return [((FORWARD, i, place - 1), self.hop)] if place else []
        if kind == OVERLAPPED:
            return self._needs(stage, Pass(FORWARD, i, chunk)) + self._needs(stage, other)
        own = ((FORWARD, i, place), 0.0)
        after = place + 1
        return [own, ((BACKWARD, i, after), self.hop)] if after < self.depth else [own]

    def _makes(self, stage: int, work: Pass) -> list[tuple[str, int, int]]:
        """The results that others wait for; I and B make the same gradient of the input."""
        kind, i, chunk, other = work
        if kind == OVERLAPPED:
            return [*self._makes(stage, Pass(FORWARD, i, chunk)), *self._makes(stage, other)]
        if kind == WEIGHT:
            return []
        return [(FORWARD if kind == FORWARD else BACKWARD, i, self._place(stage, chunk))]

    def _deadlock(self) -> str:
        stages = self.plan.stages
        waits = []
        for (kind, i, place), stage in sorted(self.waiting.items(), key=lambda item: item[1]):
            at = place % stages
            if self.plan.both_ways and i >= self.plan.micro_batches // 2:
                at = stages - 1 - place
            waits.append(f"stage {stage} for {kind} of micro-batch {i} on stage {at}")
        return (
            f"the orders deadlock, waiting are {'; '.join(waits[:4])}: "
            "run each of these passes, and run it before what depends on it"
        )
