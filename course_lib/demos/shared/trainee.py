"""A version of a technique, on one rank: what the comparison asks of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib import launch
from course_lib.demos.shared.batch import Batch, loss_share, own_rows
from course_lib.demos.shared.training import gradients_of
from course_lib.scratch.gpt import ledger


class Trainee(ABC):
    """Trains this rank's part of a model, whose parameters are whole unless a version differs."""

    name: str

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    @abstractmethod
    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this rank's part of the whole batch.

        Returns this rank's share of the mean loss: the shares of all ranks add up to it.
        """

    def gradients(self) -> Mapping[str, Tensor]:
        """The whole gradient of every parameter, by its name in GPT; may call collectives."""
        return gradients_of(self.model)

    def update(self) -> None:
        """One step of the optimizer, whatever it exchanges, and gradients set to None."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stored(self) -> dict[str, int]:
        """Bytes of this rank's tensors by consumer, as `scratch.gpt` counts them."""
        return ledger(self.model, self.optimizer)


class OnOwnRows(Trainee):
    """Trains on this rank's rows; what computes is `wrapped`, which averages gradients over ranks.

    A rank's rows count by their number, so that a batch which ranks do not divide gives the same
    mean as in one process.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, wrapped: nn.Module) -> None:
        super().__init__(model, optimizer)
        self.wrapped = wrapped

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this rank's rows."""
        rank = launch.init()
        share = loss_share(self.wrapped, own_rows(batch, rank), batch)
        (share * rank.world).backward()  # the mean over ranks becomes the sum of shares
        return share
