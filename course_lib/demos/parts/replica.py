"""A trainee that has the whole model on every rank, whatever exchanges its gradients."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from course_lib import launch
from course_lib.demos.parts.training import Batch, Training, mean_loss
from course_lib.demos.parts.versions import Sent
from course_lib.scratch.gpt import GPT
from course_lib.scratch.ledger import ledger
from course_lib.theory.network.buckets import BUCKET_CAP_BYTES, FIRST_BUCKET_BYTES, ddp_buckets


class Replica:
    """Trains `wrapped`, which computes with `model`'s parameters, on this rank's rows.

    `wrapped` averages gradients over ranks, as DDP does. A rank's rows count by their number, so
    that a batch which ranks do not divide gives the same mean as in one process.
    """

    def __init__(self, name: str, training: Training, model: GPT, wrapped: nn.Module) -> None:
        self.name, self.wrapped, self.parameters = name, wrapped, list(model.parameters())
        self.names = [name for name, _ in training.build().named_parameters()]
        self.optimizer = training.optimizer(self.parameters)

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this rank's rows."""
        rank = launch.init()
        rows = own_rows(batch, rank)
        share = mean_loss(self.wrapped, rows) * len(rows[0]) / len(batch[0])
        (share * rank.world).backward()
        return share

    def gradients(self) -> Mapping[str, Tensor]:
        """The gradients, which are whole on every rank."""
        return {
            name: parameter.grad
            for name, parameter in zip(self.names, self.parameters, strict=True)
        }

    def update(self) -> None:
        """One step of the optimizer."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stored(self) -> dict[str, int]:
        """Bytes of the states."""
        return ledger(self.wrapped, self.optimizer)


def own_rows(batch: Batch, rank: launch.Rank) -> Batch:
    """This rank's rows; ValueError for fewer rows than ranks."""
    if len(batch[0]) < rank.world:
        raise ValueError(
            f"batch {len(batch[0])} leaves some of {rank.world} ranks without a sample: "
            f"take at least {rank.world}"
        )
    return tuple(part.tensor_split(rank.world)[rank.rank] for part in batch)


def predicted_exchange(training: Training, rank: launch.Rank) -> Sent:
    """The all-reduces of one update of DDP with torch's bucket limits."""
    sizes = [p.nbytes for p in reversed(list(training.build().parameters()))]
    buckets = ddp_buckets(sizes, BUCKET_CAP_BYTES, FIRST_BUCKET_BYTES)
    return {"all-reduce": [len(buckets), sum(buckets)]} if rank.world > 1 else {}


def predicted_states(training: Training) -> dict[str, int]:
    """Bytes of weights, gradients and AdamW's two moments in fp32, on every rank."""
    size = 4 * training.shape().parameters().total
    return {
        "weights": size,
        "gradients": size,
        "optimizer": 2 * size,
        "inputs and labels": 0,
    }


def own_devices(rank: launch.Rank, count: int) -> list[torch.device]:
    """`count` devices of this rank: GPUs where there are enough, else its own one several times."""
    first = rank.local_rank * count
    if torch.cuda.device_count() >= rank.world * count:
        return [torch.device("cuda", first + number) for number in range(count)]
    return [rank.device] * count
