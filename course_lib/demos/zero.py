"""ZeRO 1, 2, 3 and offload: who stores and sends what, beside ZeroRedundancyOptimizer.

The same model on the same batches: every stage gives the losses of one process, keeps less on each
rank, and sends as many bytes as plain data parallelism (stage 3: half as many again).
Run it with `course demo zero --ranks 2`, or under torchrun.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch, mine
from course_lib.demos.shared.comparison import Comparison, Version
from course_lib.demos.shared.options import BatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.prediction import FP32, Sharding, Stored, calls, ddp_calls
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Batch, Training, loss_share, own_rows
from course_lib.measure.peak import tensor_bytes
from course_lib.scratch import wire
from course_lib.scratch.gpt import ledger
from course_lib.scratch.zero import Host, Zero, Zero3, views
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network.collectives import sent_bytes, zero_volume
from course_lib.trace import Total, Trace


def micro_batches(batch: Batch, rank: launch.Rank, accumulation: int) -> list[Batch]:
    """This rank's rows, split into `accumulation` micro-batches."""
    inputs, labels = (part.tensor_split(accumulation) for part in own_rows(batch, rank))
    return list(zip(inputs, labels, strict=True))


class ScratchZero(Trainee):
    """ZeRO from scratch, at any stage; `offload` keeps the optimizer on the host.

    `parts`: "mine" selects the learner's stages 1 and 2, where built.
    """

    def __init__(
        self,
        stage: int,
        training: Training,
        accumulation: int,
        rank: launch.Rank,
        *,
        offload: bool,
        parts: str,
    ) -> None:
        whose = with_yours(parts, "Zero") if stage in (1, 2) else ""
        self.name = f"stage {stage} from scratch" + (", offloaded" if offload else whose)
        self.rank, self.accumulation = rank, accumulation
        self.host = Host() if offload else None
        self.moved = (0, 0)  # bytes to the host and from it, in the last update
        model = training.build(rank.device)
        arguments = (model, model.blocks, training.optimizer)
        if stage == 3:
            self.zero: Zero = Zero3(*arguments, place=self.host)
        elif whose:
            self.zero = mine.get("Zero")(*arguments, stage=stage)
        else:
            self.zero = Zero(*arguments, stage=stage, place=self.host)
        super().__init__(model, self.zero.optimizer)

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this rank's micro-batches."""
        share = torch.zeros((), device=self.rank.device)
        for piece in micro_batches(batch, self.rank, self.accumulation):
            loss = loss_share(self.model, piece, batch)
            loss.backward()
            share += loss.detach()
        return share

    def gradients(self) -> Mapping[str, Tensor]:
        """The units' gradients, gathered where they are sharded."""
        self.zero.reduce()
        by_parameter: dict[Tensor, Tensor] = {}
        for unit in self.zero.units.values():
            assert unit.gradient is not None  # reduced just now
            whole = wire.all_gather(unit.gradient) if self.zero.ranks > 1 else unit.gradient
            by_parameter |= dict(views(whole, unit.parameters))
        return {name: by_parameter[p] for name, p in self.model.named_parameters()}

    def update(self) -> None:
        """One step of ZeRO; records the bytes moved between device and host."""
        before = (self.host.put_bytes, self.host.fetched_bytes) if self.host else (0, 0)
        self.zero.step()
        if self.host:
            after = self.host.put_bytes, self.host.fetched_bytes
            self.moved = after[0] - before[0], after[1] - before[1]

    def stored(self) -> dict[str, int]:
        """Bytes of the units' tensors; offloaded ones are "on the host"."""
        units = self.zero.units.values()
        weights = [tensor for unit in units for tensor in (unit.whole, unit.own)]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        gradients += [unit.gradient for unit in units if unit.gradient is not None]
        states = ledger(self.model, self.optimizer)["optimizer"]
        copies = tensor_bytes([*weights, *[unit.master for unit in units]]) - tensor_bytes(weights)
        sizes = {
            "weights": tensor_bytes(weights),
            "gradients": tensor_bytes(gradients),
            "optimizer": 0 if self.host else states + copies,
        }
        return sizes | ({"on the host": states + copies} if self.host else {})


class LibraryZero(Trainee):
    """torch's stage 1: DDP, and an optimizer that assigns each tensor's states to one rank."""

    name = "ZeroRedundancyOptimizer, stage 1"

    def __init__(self, training: Training, accumulation: int, rank: launch.Rank) -> None:
        self.rank, self.accumulation = rank, accumulation
        model = training.build(rank.device)
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.sharded = ZeroRedundancyOptimizer(
            model.parameters(),
            torch.optim.AdamW,
            parameters_as_bucket_view=True,
            lr=training.learning_rate,
            weight_decay=0.0,
        )
        super().__init__(model, self.sharded)

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this rank's micro-batches."""
        share = torch.zeros((), device=self.rank.device)
        pieces = micro_batches(batch, self.rank, self.accumulation)
        for number, piece in enumerate(pieces, start=1):
            with nullcontext() if number == len(pieces) else self.ddp.no_sync():
                loss = loss_share(self.ddp, piece, batch)
                (loss * self.rank.world).backward()  # DDP takes the mean over ranks
            share += loss.detach()
        return share

    def stored(self) -> dict[str, int]:
        """Bytes of the states; for the optimizer, only those on this rank."""
        sizes = ledger(self.model, self.sharded.optim)
        return {name: sizes[name] for name in ("weights", "gradients", "optimizer")}


STAGES = ("all", "0", "1", "2", "3")
BYTES = FP32.weight_bytes


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of this demo."""

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
        """The theory's description of this stage."""
        layout = Layout(dp=ranks, zero_stage=stage, accumulation=self.accumulation)
        return Sharding(self.training(), layout)


def main(options: Options) -> Result:
    """Train every version; every rank returns the same losses, and its own bytes."""
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
    """Bytes that a rank stores with its optimizer and a copy of the weights on the host."""
    stored = sharding.stored()
    return stored | {"optimizer": 0, "on the host": stored["optimizer"] + moved(sharding)}


def moved(sharding: Sharding) -> int:
    """Bytes over the bus in one update, each way: gradients to the host, weights back."""
    ranks = sharding.layout.dp if sharding.layout.zero_stage else 1
    return sum(BYTES * count * -(-size // ranks) for count, size, _ in sharding.units().values())


def predicted_volume(sharding: Sharding) -> float:
    """Bytes that a rank sends in one update with one micro-batch, by the ZeRO paper's section 7.

    Under stage 3 the ends are gathered once instead of twice, as in stage 2.
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

    Broadcasts are assumed to be one of each rank's part: a rank is the last in one chain and
    forwards the other parts, as in an all-gather.
    """
    return sum(
        sent_bytes("all-gather" if operation == "broadcast" else operation, size, ranks)
        for operation, (_, size) in sent.items()
    )


def _library(options: Options, comparison: Comparison) -> Version:
    """Train torch's stage 1: DDP all-reduces gradients, then each rank broadcasts its part."""
    training, rank = options.training(), comparison.rank
    trainee = LibraryZero(training, options.accumulation, rank)
    sizes = [p.numel() for p in trainee.model.parameters()]
    whole = BYTES * sum(sizes)
    own = redundancy_optimizer_parts(sizes, rank.world)[rank.rank]
    stored = {"weights": whole, "gradients": whole, "optimizer": 2 * BYTES * own}
    predicted = ddp_calls([BYTES * size for size in sizes], rank.world)
    if rank.world > 1:
        predicted = Trace([*predicted, *calls("broadcast", rank.world, whole)])
    return comparison.follow(trainee, predicted, stored)


def redundancy_optimizer_parts(sizes: Sequence[int], ranks: int) -> list[int]:
    """Parameters on each rank under torch's ZeroRedundancyOptimizer, which does not split tensors.

    Greedy: the largest tensor first, each to the rank with the fewest parameters.
    """
    parts = [0] * ranks
    for size in sorted(sizes, reverse=True):
        parts[parts.index(min(parts))] += size
    return parts
