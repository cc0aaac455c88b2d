"""A pipeline in time: what every stage does and when; bubble and memory follow."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from course_lib.theory.inputs.units import format_number
from course_lib.theory.pipelines.schedules import (
    BACKWARD,
    FORWARD,
    OVERLAPPED,
    WEIGHT,
    Pass,
    Schedule,
)
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
        return most / self.schedule.visits

    def repeated(self, turns: int) -> tuple[Task, ...]:
        """The tasks of `turns` such batches: each begins when the one before is flushed.

        Micro-batches and times are shifted by a batch and by the makespan for each turn.
        """
        whole("turns", turns, most=1000)
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

    def explain(self) -> str:
        """Totals, then busy and idle time and the micro-batches in flight of each stage."""
        plan = self.schedule
        lines = [
            f"{plan.name}: {self.stages} stages, {plan.micro_batches} micro-batches",
            f"makespan {format_number(self.makespan, 6)} = busy "
            f"{format_number(self.makespan - self.bubble_time, 6)} "
            f"+ bubble {format_number(self.bubble_time, 6)} (average of the stages)",
            f"bubble / makespan {self.bubble_fraction:.2%}, / ideal {self.bubble_over_ideal:.2%}",
        ]
        for stage, (busy, idle) in enumerate(zip(self.busy, self.idle, strict=True)):
            lines.append(
                f"stage {stage:<4} busy {busy:<10.6g} idle {idle:<10.6g} "
                f"in flight {format_number(self.in_flight(stage), 6)}"
            )
        return "\n".join(lines)
