"""Pipeline parallelism: every schedule from theory, bubble and messages measured.

A small GPT is cut by layers. Each rank holds some of them and works through a schedule of
theory.pipelines.schedules, with real messages; torch.distributed.pipelining does the same. Every
version is equal to one process, and a second experiment, in which stages sleep instead of
computing, measures the bubble.
Run it with `course demo pipeline --ranks 4`, or under torchrun.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.functional import cross_entropy

from course_lib import launch, mine
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option, whose_parts
from course_lib.demos.shared.prediction import predicted_stored, told, traffic
from course_lib.demos.shared.ranks import from_all_ranks, joined
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Batch, Training, gradients_of
from course_lib.measure.gradients import count_held
from course_lib.scratch.pipeline import Pipeline
from course_lib.scratch.pipeline_stage import Pass, Wires, cut, sum_tied_gradients, wires
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.pipelines.bubble import PassTimes, bubble_fraction
from course_lib.theory.pipelines.schedules import Schedule, schedule
from course_lib.theory.pipelines.simulation import Task, simulate
from course_lib.validation import divisible

# --- versions -----------------------------------------------------------------------------------
# The pipeline demo's two versions: `scratch.pipeline` and torch.distributed.pipelining.


LIBRARY = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class Staged(Trainee):
    """Base of both versions: this rank's parts of the model, and gradients from all ranks."""

    def __init__(
        self, kind: str, training: Training, layout: Layout, group: Wires, rank: launch.Rank
    ) -> None:
        self.name = f"{kind} {layout.schedule}"
        self.training, self.layout, self.group, self.rank = training, layout, group, rank
        self.plan = plan_of(layout)
        layers, rank_of_world = layout.chunk_layers(training.shape()), (rank.rank, rank.world)
        self.parts = cut(training.build(rank.device), layers, *rank_of_world, self.plan.way)
        model = nn.ModuleList(self.parts)
        super().__init__(model, training.optimizer(model.parameters()))

    def gradients(self) -> Mapping[str, Tensor]:
        """The gradients of all stages, by their names in GPT; the head's is the embedding's."""
        parts = (gradients_of(part) for part in self.parts)
        return joined({name: gradient.cpu() for part in parts for name, gradient in part.items()})


class Scratch(Staged):
    """`scratch.pipeline`, which runs the passes in the order that theory predicts.

    `parts`: "mine" runs the learner's own Pipeline instead, where it is built.
    """

    def __init__(
        self,
        training: Training,
        layout: Layout,
        group: Wires,
        rank: launch.Rank,
        parts: str = "course",
    ) -> None:
        is_learners = parts == "mine" and mine.is_mine("Pipeline")
        kind = "your Pipeline" if is_learners else "scratch"
        super().__init__(kind, training, layout, group, rank)
        pipeline: type[Pipeline] = mine.get("Pipeline", parts)
        # A learner's Pipeline places chunks in rounds only.
        placement: dict[str, Any] = {} if self.plan.way == "rounds" else {"way": self.plan.way}
        self.pipeline = pipeline(self.parts, self.plan.orders, group, **placement)

    def backward(self, batch: Batch) -> Tensor:
        """Run all passes of this stage; the last stage of the model returns the loss, others 0."""
        pieces = [part.chunk(self.layout.accumulation) for part in batch]
        return self.pipeline.run(list(zip(*pieces, strict=True)))


class Library(Staged):
    """torch.distributed.pipelining on the same parts; the tied table's gradient is summed here."""

    def __init__(self, training: Training, layout: Layout, group: Wires, rank: launch.Rank) -> None:
        super().__init__("torch", training, layout, group, rank)
        indices = layout.stage_chunks(rank.rank)
        stages = [
            PipelineStage(part, index, layout.chunks, rank.device)
            for index, part in zip(indices, self.parts, strict=True)
        ]
        # Multi-stage schedules take a list, even of one stage.
        takes_list = layout.schedule == "interleaved"
        self.schedule = LIBRARY[layout.schedule](
            stages if takes_list else stages[0],
            n_microbatches=layout.accumulation,
            loss_fn=lambda logits, labels: cross_entropy(logits.flatten(0, 1), labels.flatten()),
        )

    def backward(self, batch: Batch) -> Tensor:
        """One step of the schedule: tokens go in at the first part, labels at the last."""
        inputs, labels = batch
        losses: list[Tensor] = []
        last_inputs: dict[str, Any] = {}
        if self.parts[-1].last:
            last_inputs = {"target": labels, "losses": losses}
        self.schedule.step(*([inputs] if self.parts[0].first else []), **last_inputs)
        sum_tied_gradients(self.parts, self.group)
        return torch.stack(losses).mean() if losses else torch.zeros((), device=self.rank.device)


def plan_of(layout: Layout) -> Schedule:
    """The schedule of a layout: the order of passes on every stage."""
    return schedule(layout.schedule, layout.pp, layout.accumulation, layout.virtual_stages)


# --- sleeping stages ----------------------------------------------------------------------------
# The bubble measured: stages that sleep instead of computing.


@dataclass(frozen=True)
class Sleeping:
    """One update with sleeping passes; times are in seconds from the first pass."""

    schedule: str
    predicted: list[Task]
    measured: list[Task]  # of all stages, on one clock
    makespan: float
    predicted_makespan: float
    bubble_fraction: float  # the part of the measured time in which stages did not sleep
    predicted_bubble_fraction: float
    formula: float | None  # (p-1) / (vm + p-1), for the schedules for which it holds

    def line(self) -> str:
        """The report's line: measured time and bubble, and the predicted ones."""
        formula = "" if self.formula is None else f", formula {self.formula:.1%}"
        return (
            f"{self.schedule} asleep: {1000 * self.makespan:.0f} ms (predicted "
            f"{1000 * self.predicted_makespan:.0f}), bubble {self.bubble_fraction:.1%} "
            f"(predicted {self.predicted_bubble_fraction:.1%}{formula})"
        )


class SleepingPasses:
    """Makes each pass of a pipeline take at least the seconds of its kind, {kind: seconds}."""

    def __init__(self, pipeline: Pipeline, seconds: Mapping[str, float]) -> None:
        self.pass_of, self.seconds = pipeline.compute, seconds
        self.log: list[tuple[Pass, float, float]] = []  # pass, start, end
        pipeline.compute = self.compute  # type: ignore[method-assign]

    def compute(self, work: Pass, arrived: Tensor | None) -> Tensor | None:
        """Compute, sleep for the rest of the pass's time, and record the pass."""
        start = time.monotonic()  # one clock for all ranks of a machine
        result = self.pass_of(work, arrived)
        time.sleep(max(0.0, start + self.seconds[work.kind] - time.monotonic()))
        self.log.append((work, start, time.monotonic()))
        return result


def sleep(
    make: Callable[[Training], Scratch], training: Training, layout: Layout, forward_s: float
) -> Sleeping:
    """Time one update in which a forward pass sleeps `forward_s`, a backward pass twice that.

    Sleeping stages do not compete for cores, however few they share: they behave like GPUs.
    """
    # Minimal computation: one sample of two characters in each micro-batch.
    training = replace(training, batch=layout.accumulation, sequence=2)
    plan, times = plan_of(layout), PassTimes(forward_s, 2 * forward_s)
    trainee = make(training)
    batch = training.batches(trainee.rank.device)[0]
    trainee.backward(batch)  # warm-up without sleep: the first passes of a model take longer
    seconds = {kind: each / plan.visits for kind, each in times.of(1)[0].items()}
    sleeping = SleepingPasses(trainee.pipeline, seconds)
    dist.barrier()
    trainee.backward(batch)
    measured = _on_one_clock(sleeping, trainee.rank.rank)
    predicted = simulate(plan, times)
    makespan = max(task.end for task in measured)
    formula = bubble_fraction(layout.pp, layout.accumulation, layout.virtual_stages)
    # All that is not sleep counts as bubble, including computation and communication.
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


def _on_one_clock(sleeping: SleepingPasses, stage: int) -> list[Task]:
    """The passes of all stages as theory's tasks, in seconds from the first start.

    Valid on one machine only, whose processes share the monotonic clock.
    """
    own = [
        Task(stage, work.kind, work.micro_batch, work.chunk, start, end)
        for work, start, end in sleeping.log
    ]
    everyone = [task for tasks in from_all_ranks(own) for task in tasks]
    zero = min(task.start for task in everyone)
    return [task._replace(start=task.start - zero, end=task.end - zero) for task in everyone]


# Without DualPipe: it holds every layer twice, and optimizer and prediction do not support that.
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb1p", "zbv")


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of the demo."""

    model: str = option("9x32x4", "LAYERSxHIDDENxHEADS, or a name such as small")
    steps: int = option(4, "optimizer updates")
    batch: int = option(16, "samples in one update")
    micro_batches: int = option(8, "pieces of the batch", least=1)
    schedule: str = option(
        "all", f"all that fit, or one of {', '.join(SCHEDULES)}", among=("all", *SCHEDULES)
    )
    virtual_stages: int = option(2, "chunks on each rank under the interleaved schedule", least=2)
    sequence: int = option(16, "characters in a sample")
    sleep_ms: float = option(
        10.0, "sleep of a forward pass in the bubble's experiment; 0: none", least=0
    )
    parts: str = whose_parts()

    def __post_init__(self) -> None:
        super().__post_init__()
        divisible("batch", self.batch, "micro_batches", self.micro_batches)

    def layout(self, name: str, ranks: int) -> Layout:
        """The layout of schedule `name` on `ranks` stages. Raises ValueError if it does not fit."""
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
        """Layouts of the requested schedule, or of all schedules that fit these ranks."""
        layers, pipeline = self.training().size[0], mine.get("Pipeline", self.parts)
        if self.schedule == "zbv" and pipeline is not Pipeline:
            raise ValueError(
                "schedule zbv runs through the stages in a V, which a Pipeline of yours does not "
                "know: take another schedule, or parts course"
            )
        if self.schedule != "all":
            return [self.layout(self.schedule, ranks)]
        fills_a_v = self.micro_batches >= 2 * ranks - 1 and layers >= 2 * ranks
        in_turns = ranks > 1 and self.micro_batches % ranks == 0
        # A learner's Pipeline does not split backward passes, unless it goes beyond the exercise.
        fits = {
            "interleaved": in_turns and ranks * self.virtual_stages <= layers,
            "zb1p": hasattr(pipeline, "backward_input"),
            "zbv": pipeline is Pipeline and fills_a_v,
        }
        return [self.layout(name, ranks) for name in SCHEDULES if fits.get(name, True)]


@dataclass(frozen=True)
class Stage:
    """Layers in each chunk of a stage, and the forward passes that it holds at its peak."""

    layers: list[int]
    most_held: int
    predicted_most_held: int


def main(options: Options) -> Result:
    """Train with every schedule; every rank checks its own stage."""
    rank = launch.init()
    layouts = options.layouts(rank.world)
    training = options.training()
    group = wires([range(rank.world)])
    comparison = Comparison(training)
    stages: dict[str, list[Stage]] = {}
    facts: list[Fact] = []
    by_hand = {
        layout: partial(Scratch, layout=layout, group=group, rank=rank, parts=options.parts)
        for layout in layouts
    }
    for layout, make in by_hand.items():
        trainee = make(training)
        _follow(comparison, trainee, layout)
        own = _stage(trainee, training, layout)
        held = f"{trainee.name}: passes that stage {rank.rank} holds at its peak"
        facts.append(Fact(held, own.most_held, own.predicted_most_held))
        stages[layout.schedule] = from_all_ranks(own)
        # torch divides the gradient of a table that two stages of one rank share by the number of
        # micro-batches twice: it is left out on one rank and in a V.
        if layout.schedule in LIBRARY and rank.world > 1:
            _follow(comparison, Library(training, layout, group, rank), layout)
    sleeping = []
    if options.sleep_ms:
        forward_s = options.sleep_ms / 1000
        for number, (layout, make) in enumerate(by_hand.items()):
            launch.report_step(number, len(by_hand))
            sleeping.append(sleep(make, training, layout, forward_s))
    return comparison.result(
        "pipeline",
        notes=[*_held_notes(stages), *(run.line() for run in sleeping)],
        facts=facts,
        stages=stages,
        sleeping=sleeping,
    )


def _follow(comparison: Comparison, trainee: Staged, layout: Layout) -> None:
    training, stage = trainee.training, trainee.rank.rank
    sent = told(traffic(training, layout, stage=stage))
    comparison.follow(trainee, sent, predicted_stored(training, layout, stage))


def _stage(trainee: Scratch, training: Training, layout: Layout) -> Stage:
    """The layers of this stage, and its peak of passes held in one more update."""
    number = trainee.rank.rank
    sizes = layout.chunk_layers(training.shape())
    with count_held(trainee.parts) as held:
        trainee.backward(training.batches(trainee.rank.device)[0])
    layers = [sizes[chunk] for chunk in layout.stage_chunks(number)]
    return Stage(layers, held.most, sum(layout.in_flight(number).values()))


def _held_notes(stages: dict[str, list[Stage]]) -> Iterator[str]:
    """A line of notes for each schedule: layers and peak of each stage."""
    for name, each in stages.items():
        held = (f"{stage.most_held} (predicted {stage.predicted_most_held})" for stage in each)
        layers = " | ".join("+".join(map(str, stage.layers)) for stage in each)
        yield f"{name}: layers {layers}; passes held at the peak: {', '.join(held)}"
