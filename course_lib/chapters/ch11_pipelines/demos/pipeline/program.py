"""Pipeline parallelism: every schedule from theory, bubble and messages measured.

A small GPT is cut by layers. Each rank holds some of them and works through a schedule of
theory.pipelines.schedules, with real messages; torch.distributed.pipelining does the same. Every
version is equal to one process, and a second experiment, in which stages sleep instead of
computing, measures the bubble.
Run it with `course demo pipeline --ranks 4`, or under torchrun.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from course_lib import launch, mine
from course_lib.chapters.ch11_pipelines.demos.pipeline.versions import (
    LIBRARY,
    Library,
    Scratch,
    Staged,
    sleep,
)
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option, whose_parts
from course_lib.demos.shared.prediction import predicted_stored, told, traffic
from course_lib.demos.shared.ranks import from_all_ranks
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.training import Training
from course_lib.measure.gradients import count_held
from course_lib.scratch.pipeline import Pipeline
from course_lib.scratch.pipeline_stage import wires
from course_lib.theory.inputs.layout import Layout
from course_lib.validation import divisible

# DualPipe holds every layer twice, which neither optimizer nor prediction here expects.
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb1p", "zbv")


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

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
        # A Pipeline of the learner's has whole backward passes, unless it goes beyond the exercise.
        fits = {
            "interleaved": in_turns and ranks * self.virtual_stages <= layers,
            "zb1p": hasattr(pipeline, "backward_input"),
            "zbv": pipeline is Pipeline and fills_a_v,
        }
        return [self.layout(name, ranks) for name in SCHEDULES if fits.get(name, True)]


@dataclass(frozen=True)
class Stage:
    """What one stage holds: layers of each chunk, and chunks of micro-batches at the peak."""

    layers: list[int]
    most_held: int
    predicted_most_held: int


def main(options: Options) -> Result:
    """Train with every schedule; every rank verifies its own stage."""
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
        # torch divides a table that two stages of a rank share twice by the micro-batches: alone,
        # and in a V.
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
        notes=[*_held(stages), *(run.line() for run in sleeping)],
        facts=facts,
        stages=stages,
        sleeping=sleeping,
    )


def _follow(comparison: Comparison, trainee: Staged, layout: Layout) -> None:
    training, stage = trainee.training, trainee.rank.rank
    sent = told(traffic(training, layout, stage=stage))
    comparison.follow(trainee, sent, predicted_stored(training, layout, stage))


def _stage(trainee: Scratch, training: Training, layout: Layout) -> Stage:
    """This stage's peak in one more update."""
    number = trainee.rank.rank
    sizes = layout.chunk_layers(training.shape())
    with count_held(trainee.parts) as held:
        trainee.backward(training.batches(trainee.rank.device)[0])
    layers = [sizes[chunk] for chunk in layout.stage_chunks(number)]
    return Stage(layers, held.most, sum(layout.in_flight(number).values()))


def _held(stages: dict[str, list[Stage]]) -> Iterator[str]:
    """What the stages of each schedule hold."""
    for name, each in stages.items():
        held = (f"{stage.most_held} (predicted {stage.predicted_most_held})" for stage in each)
        layers = " | ".join("+".join(map(str, stage.layers)) for stage in each)
        yield f"{name}: layers {layers}; passes held at the peak: {', '.join(held)}"
