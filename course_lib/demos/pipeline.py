"""Pipeline parallelism: a small GPT cut by layers, every schedule beside torch's own.

Each rank holds some of the layers and works through a schedule of theory.schedules, with real
messages; torch.distributed.pipelining does the same. Every version is equal to one process, and a
second experiment, in which stages sleep instead of computing, measures the bubble.
Run it with `course demo pipeline --ranks 4`, or under torchrun.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from course_lib import launch
from course_lib.demos.parts.command import option, run_as_program
from course_lib.demos.parts.command import parse as parse_options
from course_lib.demos.parts.pipeline_versions import (
    LIBRARY,
    Library,
    Scratch,
    Staged,
    from_all,
    plan_of,
)
from course_lib.demos.parts.training import OneProcess, Training, TrainingOptions, one_process
from course_lib.demos.parts.versions import (
    FP32,
    Comparison,
    Version,
    follow,
    predicted_sent,
)
from course_lib.scratch.pipeline.runtime import Pipeline
from course_lib.scratch.pipeline.stage import Wires, wires
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.theory.pipelines.bubble import bubble_fraction
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.simulation import simulate
from course_lib.theory.pipelines.timeline import Task
from course_lib.validation import choice, divisible, number, whole

# DualPipe holds every layer twice, and a bidirectional runtime is another program.
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb1p")


@dataclass(frozen=True)
class Options(TrainingOptions):
    """What the demo can be asked for."""

    model: str = option("9x32x4", "LAYERSxHIDDENxHEADS, or a name such as small")
    steps: int = option(4, "optimizer updates")
    batch: int = option(16, "samples in one update")
    micro_batches: int = option(8, "pieces of the batch")
    schedule: str = option("all", f"all that fit, or one of {', '.join(SCHEDULES)}")
    virtual_stages: int = option(2, "chunks on each rank under the interleaved schedule")
    sequence: int = option(16, "characters in a sample")
    sleep_ms: float = option(10.0, "sleep of a forward pass in the bubble's experiment; 0: none")
    learning_rate: float = option(3e-3, "AdamW's learning rate")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("micro_batches", self.micro_batches)
        divisible("batch", self.batch, "micro_batches", self.micro_batches)
        choice("schedule", self.schedule, ("all", *SCHEDULES))
        whole("virtual_stages", self.virtual_stages, least=2)
        number("sleep_ms", self.sleep_ms, least=0)

    def layout(self, name: str, ranks: int) -> Layout:
        """Schedule `name` on `ranks` stages; ValueError where it does not fit."""
        layout = Layout(
            pp=ranks,
            micro_batch=self.batch // self.micro_batches,
            accumulation=self.micro_batches,
            schedule=name,
            virtual_stages=self.virtual_stages if name == "interleaved" else 1,
        )
        layout.check(self.training().shape(), self.sequence)
        return layout

    def layouts(self, ranks: int) -> list[Layout]:
        """The one that was asked for, or every schedule that fits these ranks."""
        if self.schedule != "all":
            return [self.layout(self.schedule, ranks)]
        fits = ranks > 1 and self.micro_batches % ranks == 0
        fits = fits and ranks * self.virtual_stages <= self.training().size[0]
        names = [name for name in SCHEDULES if name != "interleaved" or fits]
        return [self.layout(name, ranks) for name in names]


@dataclass(frozen=True)
class Stage:
    """What one stage holds: layers of each chunk, and chunks of micro-batches at the peak."""

    layers: list[int]
    most_held: int
    predicted_most_held: int


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


@dataclass(frozen=True)
class Result:
    """Every schedule beside one process and the theory."""

    comparison: Comparison
    stages: dict[str, list[Stage]]  # by schedule
    sleeping: list[Sleeping]

    def report(self) -> str:
        """The findings, one a line."""
        lines = [self.comparison.report()]
        for name, stages in self.stages.items():
            held = ", ".join(
                f"{stage.most_held} (predicted {stage.predicted_most_held})" for stage in stages
            )
            layers = " | ".join("+".join(map(str, stage.layers)) for stage in stages)
            lines.append(f"{name}: layers {layers}; passes held at the peak: {held}")
        for run in self.sleeping:
            formula = "" if run.formula is None else f", formula {run.formula:.1%}"
            lines.append(
                f"{run.schedule} asleep: {1000 * run.makespan:.0f} ms (predicted "
                f"{1000 * run.predicted_makespan:.0f}), bubble {run.bubble_fraction:.1%} "
                f"(predicted {run.predicted_bubble_fraction:.1%}{formula})"
            )
        return "\n".join(lines)


def main(options: Options) -> Result:
    """Train with every schedule; every rank verifies its own stage."""
    rank = launch.init()
    layouts = options.layouts(rank.world)
    training = options.training()
    group = wires([range(rank.world)])
    reference = one_process(training, rank.device)
    versions: list[Version] = []
    stages: dict[str, list[Stage]] = {}
    for layout in layouts:
        trainee = Scratch(training, layout, group, rank)
        versions.append(_followed(trainee, training, layout, reference))
        stages[layout.schedule] = from_all(_stage(trainee, training, layout))
        # Alone, torch divides a table that two of its stages share twice by the micro-batches.
        if layout.schedule in LIBRARY and rank.world > 1:
            library = Library(training, layout, group, rank)
            versions.append(_followed(library, training, layout, reference))
    comparison = Comparison.verified(
        "pipeline",
        rank,
        options.model,
        reference,
        versions,
    )
    asleep = [sleep(options, layout, group, rank) for layout in layouts if options.sleep_ms]
    return Result(comparison, stages, asleep)


class Asleep(Pipeline):
    """A pipeline whose passes take at least a given time: {kind: seconds}."""

    seconds: Mapping[str, float]

    def compute(self, work: Any, arrived: Tensor | None) -> Tensor | None:
        """Compute, then sleep for the rest of the pass."""
        end = time.monotonic() + self.seconds[work.kind]
        result = super().compute(work, arrived)
        time.sleep(max(0.0, end - time.monotonic()))
        return result


def sleep(options: Options, layout: Layout, group: Wires, rank: launch.Rank) -> Sleeping:
    """One update in which a forward pass sleeps, a backward pass twice as long.

    Sleeping stages disturb each other no more than GPUs would, however few cores they share.
    """
    # As little to compute as there can be: a sample of two characters in each micro-batch.
    training = replace(options.training(), batch=options.micro_batches, sequence=2)
    plan, forward = plan_of(layout), options.sleep_ms / 1000
    times = PassTimes(forward, 2 * forward)
    trainee = Scratch(training, layout, group, rank)
    batch = training.batches(rank.device)[0]
    trainee.backward(batch)  # without sleep: the first passes of a model take longer
    trainee.pipeline = Asleep(trainee.parts, plan.orders, group)
    trainee.pipeline.seconds = {
        kind: seconds / plan.chunks for kind, seconds in times.of(1)[0].items()
    }
    dist.barrier()
    trainee.backward(batch)
    measured = _on_one_clock(trainee.pipeline, rank.rank)
    predicted = simulate(plan, times)
    makespan = max(task.end for task in measured)
    # Whatever is not sleep counts as bubble, the computing and the messages as well.
    return Sleeping(
        schedule=layout.schedule,
        predicted=list(predicted.tasks),
        measured=measured,
        makespan=makespan,
        predicted_makespan=predicted.makespan,
        bubble_fraction=1 - sum(predicted.busy) / plan.stages / makespan,
        predicted_bubble_fraction=predicted.bubble_fraction,
        formula=_formula(layout),
    )


def _formula(layout: Layout) -> float | None:
    if layout.schedule not in LIBRARY:
        return None
    return bubble_fraction(layout.pp, layout.accumulation, layout.virtual_stages)


def _on_one_clock(pipeline: Pipeline, stage: int) -> list[Task]:
    """The passes of all stages, in the theory's form, from the first start on.

    The monotonic clock is one for all processes of a machine, not for several machines.
    """
    own = [
        Task(stage, work.kind, work.micro_batch, work.chunk, start, end)
        for work, start, end in pipeline.diary
    ]
    everyone = [task for tasks in from_all(own) for task in tasks]
    zero = min(task.start for task in everyone)
    return [task._replace(start=task.start - zero, end=task.end - zero) for task in everyone]


def _followed(
    trainee: Staged, training: Training, layout: Layout, reference: OneProcess
) -> Version:
    stage = trainee.rank.rank
    states = sharded_states(local_parameters(training.shape(), layout, stage), FP32, layout)
    stored = {
        "weights": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "optimizer": states.optimizer_state_bytes,
        "inputs and labels": 0,
    }
    sent = predicted_sent(training, layout, stage=stage)
    return follow(trainee, training, reference, sent, stored)


def _stage(trainee: Scratch, training: Training, layout: Layout) -> Stage:
    """This stage's peak, which must be the theory's; raises AssertionError otherwise."""
    number = trainee.rank.rank
    sizes = layout.chunk_layers(training.shape())
    held, expected = trainee.pipeline.most_held, sum(layout.in_flight(number).values())
    if held != expected:
        raise AssertionError(
            f"{trainee.name}: stage {number} held {held} passes at its peak, predicted {expected}"
        )
    return Stage([sizes[chunk] for chunk in layout.stage_chunks(number)], held, expected)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from command-line arguments."""
    return parse_options(Options, argv, __doc__)


if __name__ == "__main__":
    run_as_program(main, parse())
