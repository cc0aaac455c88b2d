"""ZeRO 1, 2, 3 and offload: who stores and sends what, beside ZeroRedundancyOptimizer.

The same model on the same batches: every stage gives the losses of one process, keeps less on each
rank, and sends as many bytes as plain data parallelism (stage 3: half as many again).
Run it with `course demo zero --ranks 2`, or under torchrun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_lib import launch
from course_lib.demos.shared.comparison import Comparison, Version
from course_lib.demos.shared.options import BatchOptions, option, whose_parts
from course_lib.demos.shared.prediction import FP32, Stored, calls, ddp_calls
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.sharding import Sharding
from course_lib.demos.zero.versions import LibraryZero, ScratchZero
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network.collectives import sent_bytes, zero_volume
from course_lib.trace import Total, Trace

STAGES = ("all", "0", "1", "2", "3")
BYTES = FP32.weight_bytes


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    stage: str = option("all", "one ZeRO stage, 0 to 3, or all", among=STAGES)
    offload: bool = option(False, "keep the optimizer's states and weights on the host")
    accumulation: int = option(1, "micro-batches of each rank in one update", least=1, most=1000)
    parts: str = whose_parts("whose stages 1 and 2 run")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts == "mine" and self.offload:
            raise ValueError("offload needs parts course: what you built has no place for a host")

    def stages(self) -> list[int]:
        """The stages to run."""
        chosen = STAGES[1:] if self.stage == "all" else [self.stage]
        return [int(stage) for stage in chosen]

    def sharding(self, stage: int, ranks: int) -> Sharding:
        """The same for the theory."""
        layout = Layout(dp=ranks, zero_stage=stage, accumulation=self.accumulation)
        return Sharding(self.training(), layout)


def main(options: Options) -> Result:
    """Train every version; every rank returns the same losses and its own bytes."""
    rank, training = launch.init(), options.training()
    least = rank.world * options.accumulation
    if options.batch < least:
        raise ValueError(
            f"batch {options.batch} leaves a micro-batch empty: take at least ranks {rank.world} × "
            f"accumulation {options.accumulation} = {least}"
        )
    comparison, weights = Comparison(training), BYTES * training.shape().parameters().total
    notes: list[str] = []
    facts: list[Fact] = []

    def volume_of(version: Version) -> float:
        volume = sent_volume(version.sent, rank.world)
        notes.append(f"{version.name}: each rank sends {volume / weights:.2f} × the weights' bytes")
        return volume

    for stage in options.stages():
        sharding = options.sharding(stage, rank.world)
        trainee = ScratchZero(
            stage,
            training,
            options.accumulation,
            rank,
            offload=options.offload,
            parts=options.parts,
        )
        stored = offloaded(sharding) if options.offload else sharding.stored()
        volume = volume_of(comparison.follow(trainee, sharding.told(), stored))
        if options.accumulation == 1:
            facts.append(Fact(f"{trainee.name}: sent volume", volume, predicted_volume(sharding)))
        if options.offload:
            there, back = trainee.moved
            facts.append(Fact(f"{trainee.name}: bytes to the host", there, moved(sharding)))
            facts.append(Fact(f"{trainee.name}: bytes back", back, moved(sharding)))
            notes.append(f"{trainee.name}: {there:,} B to the host and back, as predicted")
    if 1 in options.stages():
        volume_of(_library(options, comparison))
    return comparison.result("ZeRO", notes=notes, facts=facts)


def offloaded(sharding: Sharding) -> Stored:
    """What a rank keeps with its optimizer on the host, which has a copy of the weights too."""
    stored = sharding.stored()
    return stored | {"optimizer": 0, "on the host": stored["optimizer"] + moved(sharding)}


def moved(sharding: Sharding) -> int:
    """Bytes over the bus in one update, each way: gradients to the host, weights back."""
    ranks = sharding.layout.dp if sharding.layout.zero_stage else 1
    return sum(BYTES * count * -(-size // ranks) for count, size, _ in sharding.units().values())


def predicted_volume(sharding: Sharding) -> float:
    """Bytes that a rank sends in one update with one micro-batch, by ZeRO's section 7.

    The ends of stage 3 are gathered once and not twice, as stage 2 does.
    """
    stage, ranks = sharding.layout.zero_stage, sharding.layout.dp
    units = sharding.units()
    inside, outside = (
        BYTES * count * (size + padding)
        for count, size, padding in (units["layers"], units["ends"])
    )
    return zero_volume(inside, stage, ranks) + zero_volume(outside, min(stage, 2), ranks)


def sent_volume(sent: Mapping[str, Total], ranks: int) -> float:
    """Bytes that one rank sends for the collectives of a log.

    Broadcasts are taken to be one of each rank's part: a rank is the end of one chain and passes
    the other parts on, as in an all-gather.
    """
    return sum(
        sent_bytes("all-gather" if operation == "broadcast" else operation, size, ranks)
        for operation, (_, size) in sent.items()
    )


def _library(options: Options, comparison: Comparison) -> Version:
    """torch's stage 1: DDP all-reduces whole gradients, then each rank broadcasts its part."""
    training, rank = options.training(), comparison.rank
    trainee = LibraryZero(training, options.accumulation, rank)
    sizes = [p.numel() for p in trainee.model.parameters()]
    whole = BYTES * sum(sizes)
    own = redundancy_optimizer_parts(sizes, rank.world)[rank.rank]
    stored = {"weights": whole, "gradients": whole, "optimizer": 2 * BYTES * own}
    told = ddp_calls([BYTES * size for size in sizes], rank.world)
    if rank.world > 1:
        told = Trace([*told, *calls("broadcast", rank.world, whole)])
    return comparison.follow(trainee, told, stored)


def redundancy_optimizer_parts(sizes: Sequence[int], ranks: int) -> list[int]:
    """Parameters of each rank under torch's ZeroRedundancyOptimizer, which does not cut tensors.

    The largest first, each to the rank that has least.
    """
    parts = [0] * ranks
    for size in sorted(sizes, reverse=True):
        parts[parts.index(min(parts))] += size
    return parts
