"""The bubble measured: stages that sleep instead of computing."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import Tensor

from course_lib.chapters.ch11_pipelines.demos.pipeline.versions import LIBRARY, Scratch, plan_of
from course_lib.demos.shared.ranks import from_all_ranks
from course_lib.demos.shared.training import Training
from course_lib.scratch.pipeline import Pipeline
from course_lib.scratch.pipeline_stage import Pass
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.pipelines.bubble import bubble_fraction
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.simulation import simulate
from course_lib.theory.pipelines.timeline import Task


@dataclass(frozen=True)
class Sleeping:
    """One update in which a pass takes as long as it sleeps; seconds from the first pass on."""

    schedule: str
    predicted: list[Task]
    measured: list[Task]  # of all stages, on one clock
    makespan: float
    predicted_makespan: float
    bubble_fraction: float  # the part of the measured time in which stages did not sleep
    predicted_bubble_fraction: float
    formula: float | None  # (p-1) / (vm + p-1), for the schedules for which it holds

    def line(self) -> str:
        """Time and bubble, beside what was predicted."""
        formula = "" if self.formula is None else f", formula {self.formula:.1%}"
        return (
            f"{self.schedule} asleep: {1000 * self.makespan:.0f} ms (predicted "
            f"{1000 * self.predicted_makespan:.0f}), bubble {self.bubble_fraction:.1%} "
            f"(predicted {self.predicted_bubble_fraction:.1%}{formula})"
        )


class Asleep:
    """Makes the passes of a pipeline take at least a given time: {kind: seconds}."""

    def __init__(self, pipeline: Pipeline, seconds: Mapping[str, float]) -> None:
        self.pass_of, self.seconds = pipeline.compute, seconds
        self.diary: list[tuple[Pass, float, float]] = []  # pass, start, end
        pipeline.compute = self.compute  # type: ignore[method-assign]

    def compute(self, work: Pass, arrived: Tensor | None) -> Tensor | None:
        """Compute, then sleep for the rest of the pass."""
        start = time.monotonic()  # one clock for all ranks of a machine
        result = self.pass_of(work, arrived)
        time.sleep(max(0.0, start + self.seconds[work.kind] - time.monotonic()))
        self.diary.append((work, start, time.monotonic()))
        return result


def sleep(
    make: Callable[[Training], Scratch], training: Training, layout: Layout, forward_s: float
) -> Sleeping:
    """One update in which a forward pass sleeps, a backward pass twice as long.

    Sleeping stages disturb each other no more than GPUs would, however few cores they share.
    """
    # As little to compute as there can be: a sample of two characters in each micro-batch.
    training = replace(training, batch=layout.accumulation, sequence=2)
    plan, times = plan_of(layout), PassTimes(forward_s, 2 * forward_s)
    trainee = make(training)
    batch = training.batches(trainee.rank.device)[0]
    trainee.backward(batch)  # without sleep: the first passes of a model take longer
    seconds = {kind: each / plan.visits for kind, each in times.of(1)[0].items()}
    asleep = Asleep(trainee.pipeline, seconds)
    dist.barrier()
    trainee.backward(batch)
    measured = _on_one_clock(asleep, trainee.rank.rank)
    predicted = simulate(plan, times)
    makespan = max(task.end for task in measured)
    formula = bubble_fraction(layout.pp, layout.accumulation, layout.virtual_stages)
    # Whatever is not sleep counts as bubble, the computing and the messages as well.
    return Sleeping(
        schedule=layout.schedule,
        predicted=list(predicted.tasks),
        measured=measured,
        makespan=makespan,
        predicted_makespan=predicted.makespan,
        bubble_fraction=1 - sum(predicted.busy) / plan.stages / makespan,
        predicted_bubble_fraction=predicted.bubble_fraction,
        formula=formula if layout.schedule in LIBRARY else None,
    )


def _on_one_clock(asleep: Asleep, stage: int) -> list[Task]:
    """The passes of all stages, in the theory's form, from the first start on.

    The monotonic clock is one for all processes of a machine, not for several machines.
    """
    own = [
        Task(stage, work.kind, work.micro_batch, work.chunk, start, end)
        for work, start, end in asleep.diary
    ]
    everyone = [task for tasks in from_all_ranks(own) for task in tasks]
    zero = min(task.start for task in everyone)
    return [task._replace(start=task.start - zero, end=task.end - zero) for task in everyone]
