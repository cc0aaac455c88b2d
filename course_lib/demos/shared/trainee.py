"""The interface of a version of a technique, on one rank, for `Comparison`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib import launch
from course_lib.demos.shared.prediction import ddp_calls
from course_lib.demos.shared.training import Batch, Training, gradients_of, loss_share, own_rows
from course_lib.scratch.gpt import GPT, ledger
from course_lib.trace import Trace


class Trainee(ABC):
    """Trains this rank's part of a model; parameters are whole unless a subclass shards them."""

    name: str

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    @abstractmethod
    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this rank's part of the whole batch.

        Returns this rank's share of the mean loss: the shares of all ranks add up to it.
        """

    def gradients(self) -> Mapping[str, Tensor]:
        """The full gradient of every parameter, by its name in GPT; may call collectives."""
        return gradients_of(self.model)

    def update(self) -> None:
        """Step the optimizer, with its collectives if any, and set gradients to None."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stored(self) -> dict[str, int]:
        """Bytes of this rank's tensors by consumer, as `scratch.gpt` counts them."""
        return ledger(self.model, self.optimizer)


class OnOwnRows(Trainee):
    """Trains on this rank's rows through `wrapped`, which averages gradients over ranks.

    Each rank is weighted by its number of rows, so that a batch that is not divisible by the
    ranks gives the same mean as one process.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, wrapped: nn.Module) -> None:
        super().__init__(model, optimizer)
        self.wrapped = wrapped

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this rank's rows."""
        rank = launch.init()
        share = loss_share(self.wrapped, own_rows(batch, rank), batch)
        (share * rank.world).backward()  # so that averaging over ranks sums the shares
        return share


class Replica(OnOwnRows):
    """Trains `wrapped`, which computes with `model`'s parameters."""

    def __init__(self, name: str, training: Training, model: GPT, wrapped: nn.Module) -> None:
        super().__init__(model, training.optimizer(model.parameters()), wrapped)
        self.name, self.parameters = name, list(model.parameters())
        # Checkpointing segments rename the parameters.
        self.names = [name for name, _ in training.build().named_parameters()]

    def gradients(self) -> Mapping[str, Tensor]:
        """The gradients, which are whole on every rank."""
        pairs = zip(self.names, self.parameters, strict=True)
        return {name: p.grad for name, p in pairs if p.grad is not None}

    def stored(self) -> dict[str, int]:
        """Bytes of the states."""
        return ledger(self.wrapped, self.optimizer)


def predicted_exchange(training: Training, rank: launch.Rank) -> Trace:
    """The all-reduces of one update of DDP."""
    return ddp_calls([p.nbytes for p in training.build().parameters()], rank.world)


def own_devices(rank: launch.Rank, count: int) -> list[torch.device]:
    """`count` devices for this rank: GPUs if there are enough, else its own device repeated."""
    first = rank.local_rank * count
    if torch.cuda.device_count() >= rank.world * count:
        return [torch.device("cuda", first + number) for number in range(count)]
    return [rank.device] * count
