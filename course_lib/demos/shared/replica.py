"""A trainee that has the whole model on every rank, whatever exchanges its gradients."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from course_lib import launch
from course_lib.demos.shared.prediction import ddp_calls
from course_lib.demos.shared.trainee import OnOwnRows
from course_lib.demos.shared.training import Training
from course_lib.scratch.gpt import GPT, ledger
from course_lib.trace import Trace


class Replica(OnOwnRows):
    """Trains `wrapped`, which computes with `model`'s parameters."""

    def __init__(self, name: str, training: Training, model: GPT, wrapped: nn.Module) -> None:
        super().__init__(model, training.optimizer(model.parameters()), wrapped)
        self.name, self.parameters = name, list(model.parameters())
        # What cuts a model into segments gives its parameters other names.
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
    """`count` devices for this rank: GPUs where there are enough, else its own device repeated."""
    first = rank.local_rank * count
    if torch.cuda.device_count() >= rank.world * count:
        return [torch.device("cuda", first + number) for number in range(count)]
    return [rank.device] * count
