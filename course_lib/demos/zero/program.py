"""ZeRO 1, 2, 3 and offload: who stores and sends what, beside ZeroRedundancyOptimizer.

The same model on the same batches: every stage gives the losses of one process, keeps less on each
rank, and sends as many bytes as plain data parallelism (stage 3: half as many again).
Run it with `course demo zero --ranks 2`, or under torchrun.
"""

from dataclasses import dataclass

from course_lib import launch
from course_lib.demos.shared.comparison import Comparison, Version, check_equal, follow
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.parts import WHOSE
from course_lib.demos.shared.training import OneProcess, Training, one_process
from course_lib.demos.zero.prediction import (
    ZeroPrediction,
    redundancy_optimizer_sent,
    redundancy_optimizer_stored,
    sent_volume,
)
from course_lib.demos.zero.versions import LibraryZero, ScratchZero
from course_lib.validation import choice, whole

STAGES = ("all", "0", "1", "2", "3")


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    stage: str = option("all", "one ZeRO stage, 0 to 3, or all")
    offload: bool = option(False, "keep the optimizer's states and weights on the host")
    accumulation: int = option(1, "micro-batches of each rank in one update")
    parts: str = option("course", "whose stages 1 and 2 run: course, or mine where they are built")

    def __post_init__(self) -> None:
        choice("stage", str(self.stage), STAGES)
        whole("accumulation", self.accumulation, most=1000)
        choice("parts", self.parts, WHOSE)
        if self.parts == "mine" and self.offload:
            raise ValueError("offload needs parts course: what you built has no place for a host")
        super().__post_init__()

    def stages(self) -> list[int]:
        """The stages to run."""
        chosen = STAGES[1:] if self.stage == "all" else [self.stage]
        return [int(stage) for stage in chosen]


def main(options: Options) -> Comparison:
    """Train every version; every rank returns the same losses and its own bytes."""
    rank, training = launch.init(), options.training()
    check_batch(options, rank.world)
    reference = one_process(training, rank.device)
    versions: list[Version] = []
    notes: list[str] = []
    for stage in options.stages():
        version, found = _scratch(stage, options, rank, reference)
        versions.append(version)
        notes += found
    if 1 in options.stages():
        version = _library(options, rank, reference)
        versions.append(version)
        notes.append(_volume_note(version, training, rank.world))
    return Comparison.verified("ZeRO", rank, options.model, reference, versions, notes=notes)


def check_batch(options: Options, ranks: int) -> None:
    """Raise ValueError unless every rank has a sample in each of its micro-batches."""
    least = ranks * options.accumulation
    if options.batch < least:
        raise ValueError(
            f"batch {options.batch} leaves a micro-batch empty: take at least ranks {ranks} × "
            f"accumulation {options.accumulation} = {least}"
        )


def _scratch(
    stage: int, options: Options, rank: launch.Rank, reference: OneProcess
) -> tuple[Version, list[str]]:
    training = options.training()
    prediction = ZeroPrediction(training, rank.world, stage, options.accumulation)
    trainee = ScratchZero(
        stage, training, options.accumulation, rank, offload=options.offload, parts=options.parts
    )
    version = follow(
        trainee, training, reference, prediction.sent(), prediction.stored(options.offload)
    )
    notes = [_volume_note(version, training, rank.world)]
    if options.accumulation == 1:
        volume = sent_volume(version.sent, rank.world)
        check_equal(f"{version.name}: sent", {"volume": volume}, {"volume": prediction.volume()})
    if options.offload:
        to_host, back = trainee.moved
        moved, predicted = {"to the host": to_host, "back": back}, prediction.moved()
        check_equal(f"{version.name}: bytes", moved, dict.fromkeys(moved, predicted))
        notes.append(f"{version.name}: {predicted:,} B to the host and back, as predicted")
    return version, notes


def _library(options: Options, rank: launch.Rank, reference: OneProcess) -> Version:
    training = options.training()
    trainee = LibraryZero(training, options.accumulation, rank)
    sizes = [p.numel() for p in trainee.model.parameters()]
    stored = redundancy_optimizer_stored(sizes, rank.rank, rank.world)
    sent = redundancy_optimizer_sent(sizes, rank.world)
    return follow(trainee, training, reference, sent, stored)


def _volume_note(version: Version, training: Training, ranks: int) -> str:
    weights = 4 * training.shape().parameters().total
    times = sent_volume(version.sent, ranks) / weights
    return f"{version.name}: each rank sends {times:.2f} × the weights' bytes"
