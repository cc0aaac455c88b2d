"""The versions that the demo zero trains: our own, at any stage, and torch's stage 1."""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch, mine
from course_lib.demos.shared.batch import Batch, loss_share, own_rows
from course_lib.demos.shared.parts import with_yours
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Training
from course_lib.measure.peak import tensor_bytes
from course_lib.scratch import wire
from course_lib.scratch.gpt import ledger
from course_lib.scratch.zero import Host, Zero, views
from course_lib.scratch.zero3 import Zero3


def micro_batches(batch: Batch, rank: launch.Rank, accumulation: int) -> list[Batch]:
    """This rank's rows in pieces."""
    inputs, labels = (part.tensor_split(accumulation) for part in own_rows(batch, rank))
    return list(zip(inputs, labels, strict=True))


class ScratchZero(Trainee):
    """Our own, at any stage; `offload` keeps the optimizer on the host.

    `parts`: "mine" takes the learner's stages 1 and 2, where they are built.
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
        """One step of ZeRO, and what it moved between device and host."""
        before = (self.host.put_bytes, self.host.fetched_bytes) if self.host else (0, 0)
        self.zero.step()
        if self.host:
            after = self.host.put_bytes, self.host.fetched_bytes
            self.moved = after[0] - before[0], after[1] - before[1]

    def stored(self) -> dict[str, int]:
        """Bytes of the units' tensors; what is offloaded has a line of its own."""
        units = self.zero.units.values()
        weights = [tensor for unit in units for tensor in (unit.whole, unit.own)]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        gradients += [unit.gradient for unit in units if unit.gradient is not None]
        states = ledger(self.model, self.optimizer)["optimizer"]
        copies = tensor_bytes([*weights, *[unit.master for unit in units]]) - tensor_bytes(weights)
        found = {
            "weights": tensor_bytes(weights),
            "gradients": tensor_bytes(gradients),
            "optimizer": 0 if self.host else states + copies,
        }
        return found | ({"on the host": states + copies} if self.host else {})


class LibraryZero(Trainee):
    """torch's stage 1: DDP, and an optimizer that keeps whole tensors' states on one rank each."""

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
        """Bytes of the states; the optimizer's are only those that this rank keeps."""
        found = ledger(self.model, self.sharded.optim)
        return {name: found[name] for name in ("weights", "gradients", "optimizer")}
