"""A version of a technique, on one rank: what the comparison asks of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.demos.shared.batch import Batch
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
