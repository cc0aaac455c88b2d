"""ZeRO stages 0 to 3, and the optimizer offloaded to the host, beside ZeroRedundancyOptimizer.

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

from course_lib import launch
from course_lib.demos.parts.command import option, run_as_program
from course_lib.demos.parts.command import parse as parse_options
from course_lib.demos.parts.training import Batch, OneProcess, Training, mean_loss, one_process
from course_lib.demos.parts.versions import Comparison, Version, follow
from course_lib.demos.parts.zero_prediction import (
    ZeroPrediction,
    redundancy_optimizer_parts,
    redundancy_optimizer_sent,
    sent_volume,
)
from course_lib.scratch import wire
from course_lib.scratch.ledger import ledger, tensor_bytes
from course_lib.scratch.zero.flat import views
from course_lib.scratch.zero.offload import Host
from course_lib.scratch.zero.stage3 import Zero3
from course_lib.scratch.zero.stages import Zero
from course_lib.validation import choice, flag, whole

STAGES = ("all", "0", "1", "2", "3")


@dataclass(frozen=True)
class Options:
    """What the demo can be asked for."""

    steps: int = option(5, "optimizer updates")
    model: str = option("tiny", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    stage: str = option("all", "one ZeRO stage, 0 to 3, or all")
    offload: bool = option(False, "keep the optimizer's states and weights on the host")
    batch: int = option(8, "samples of all ranks in one update")
    accumulation: int = option(1, "micro-batches of each rank in one update")
    seed: int = option(0, "seed of the weights")
    json: bool = option(False, "print the result as JSON")

    def __post_init__(self) -> None:
        choice("stage", str(self.stage), STAGES)
        whole("accumulation", self.accumulation, most=1000)
        for name in ("offload", "json"):
            flag(name, getattr(self, name))
        self.training()  # refuses a model, a batch or steps that do not fit

    def training(self) -> Training:
        """What is trained."""
        return Training(self.model, self.steps, self.batch, seed=self.seed)

    def stages(self) -> list[int]:
        """The stages to run."""
        chosen = STAGES[1:] if self.stage == "all" else [self.stage]
        return [int(stage) for stage in chosen]


def main(options: Options) -> Comparison:
    """Train every version; every rank returns the same losses and its own bytes."""
    rank, training = launch.init(), options.training()
    check_batch(options, rank.world)
    reference = one_process(training, rank.device)
    versions, notes = [], []
    for stage in options.stages():
        version, found = _scratch(stage, options, rank, reference)
        versions.append(version)
        notes += found
    if 1 in options.stages():
        version = _library(options, rank, reference)
        versions.append(version)
        notes.append(_volume_note(version, training, rank.world))
    return Comparison.verified(
        "ZeRO",
        rank,
        options.model,
        reference,
        versions,
        notes=notes,
    )


def check_batch(options: Options, ranks: int) -> None:
    """Raise ValueError unless every rank has a sample in each of its micro-batches."""
    least = ranks * options.accumulation
    if options.batch < least:
        raise ValueError(
            f"batch {options.batch} leaves a micro-batch empty: take at least ranks {ranks} × "
            f"accumulation {options.accumulation} = {least}"
        )


def micro_batches(batch: Batch, rank: launch.Rank, accumulation: int) -> list[tuple[Batch, float]]:
    """This rank's rows in pieces, each with the part of the whole batch that it is."""
    rows = [part.tensor_split(rank.world)[rank.rank] for part in batch]
    pieces = zip(*[part.tensor_split(accumulation) for part in rows], strict=True)
    return [(piece, len(piece[0]) / len(batch[0])) for piece in pieces]


class ScratchZero:
    """Our own, at any stage."""

    def __init__(self, stage: int, options: Options, rank: launch.Rank) -> None:
        self.name = f"stage {stage} from scratch" + (", offloaded" if options.offload else "")
        self.rank, self.accumulation = rank, options.accumulation
        training = options.training()
        self.host = Host() if options.offload else None
        self.model = training.build(rank.device)
        arguments = (self.model, self.model.blocks, training.optimizer)
        if stage == 3:
            self.zero = Zero3(*arguments, place=self.host)
        else:
            self.zero = Zero(*arguments, stage=stage, place=self.host)

    def backward(self, batch: Batch) -> Tensor:
        share = torch.zeros((), device=self.rank.device)
        for piece, part in micro_batches(batch, self.rank, self.accumulation):
            loss = mean_loss(self.model, piece) * part
            loss.backward()
            share += loss.detach()
        return share

    def gradients(self) -> Mapping[str, Tensor]:
        self.zero.reduce()
        by_parameter = {}
        for unit in self.zero.units.values():
            whole = wire.all_gather(unit.gradient) if self.zero.ranks > 1 else unit.gradient
            by_parameter |= dict(views(whole, unit.parameters))
        return {name: by_parameter[p] for name, p in self.model.named_parameters()}

    def update(self) -> None:
        before = (self.host.put_bytes, self.host.fetched_bytes) if self.host else (0, 0)
        self.zero.step()
        if self.host:
            after = self.host.put_bytes, self.host.fetched_bytes
            self.moved = after[0] - before[0], after[1] - before[1]

    def stored(self) -> dict[str, int]:
        units = self.zero.units.values()
        weights = [tensor for unit in units for tensor in (unit.whole, unit.own)]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        gradients += [unit.gradient for unit in units if unit.gradient is not None]
        states = ledger(self.model, self.zero.optimizer)["optimizer"]
        copies = tensor_bytes([*weights, *[unit.master for unit in units]]) - tensor_bytes(weights)
        found = {
            "weights": tensor_bytes(weights),
            "gradients": tensor_bytes(gradients),
            "optimizer": 0 if self.host else states + copies,
        }
        return found | ({"on the host": states + copies} if self.host else {})


class LibraryZero:
    """torch's stage 1: DDP, and an optimizer that keeps whole tensors' states on one rank each."""

    name = "ZeroRedundancyOptimizer, stage 1"

    def __init__(self, options: Options, rank: launch.Rank) -> None:
        self.rank, self.accumulation = rank, options.accumulation
        training = options.training()
        model = training.build(rank.device)
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = ZeroRedundancyOptimizer(
            model.parameters(),
            torch.optim.AdamW,
            parameters_as_bucket_view=True,
            lr=training.learning_rate,
            weight_decay=0.0,
        )

    def backward(self, batch: Batch) -> Tensor:
        share = torch.zeros((), device=self.rank.device)
        pieces = micro_batches(batch, self.rank, self.accumulation)
        for number, (piece, part) in enumerate(pieces, start=1):
            with nullcontext() if number == len(pieces) else self.ddp.no_sync():
                loss = mean_loss(self.ddp, piece) * part
                (loss * self.rank.world).backward()  # DDP takes the mean over ranks
            share += loss.detach()
        return share

    def gradients(self) -> Mapping[str, Tensor]:
        return {name: p.grad for name, p in self.ddp.module.named_parameters()}

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stored(self) -> dict[str, int]:
        found = ledger(self.ddp.module, self.optimizer.optim)
        return {name: found[name] for name in ("weights", "gradients", "optimizer")}


def _scratch(
    stage: int, options: Options, rank: launch.Rank, reference: OneProcess
) -> tuple[Version, list[str]]:
    training = options.training()
    prediction = ZeroPrediction(training, rank.world, stage, options.accumulation)
    trainee = ScratchZero(stage, options, rank)
    version = follow(
        trainee, training, reference, prediction.sent(), prediction.stored(options.offload)
    )
    notes = [_volume_note(version, training, rank.world)]
    if options.accumulation == 1:
        _equal(
            f"{version.name}: volume", sent_volume(version.sent, rank.world), prediction.volume()
        )
    if options.offload:
        _equal(f"{version.name}: bytes over the bus", trainee.moved, (prediction.moved(),) * 2)
        notes.append(f"{version.name}: {prediction.moved():,} B to the host and back, as predicted")
    return version, notes


def _library(options: Options, rank: launch.Rank, reference: OneProcess) -> Version:
    training = options.training()
    trainee = LibraryZero(options, rank)
    sizes = [p.numel() for p in trainee.ddp.module.parameters()]
    total, part = sum(sizes), redundancy_optimizer_parts(sizes, rank.world)[rank.rank]
    stored = {"weights": 4 * total, "gradients": 4 * total, "optimizer": 8 * part}
    sent = redundancy_optimizer_sent(sizes, rank.world)
    return follow(trainee, training, reference, sent, stored)


def _volume_note(version: Version, training: Training, ranks: int) -> str:
    weights = 4 * training.shape().parameters().total
    times = sent_volume(version.sent, ranks) / weights
    return f"{version.name}: each rank sends {times:.2f} × the weights' bytes"


def _equal(what: str, measured: object, predicted: object) -> None:
    if measured != predicted:
        raise AssertionError(f"{what}: {measured}, predicted {predicted}")


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from command-line arguments."""
    return parse_options(Options, argv, __doc__)


if __name__ == "__main__":
    run_as_program(main, parse())
