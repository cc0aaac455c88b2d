"""A pipeline that never flushes: stages update after each micro-batch.

Between the forward and the backward pass of a micro-batch a stage updates its
weights for others. PipeDream keeps the old weights for that backward pass:
Harlap et al. 2018, arXiv:1806.03377; Narayanan et al. 2019, SOSP. All stages
are in one process here, since only the order of their passes matters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss
from torch.nn.utils import parameters_to_vector

Weights = dict[str, Tensor]  # by name
Batch = tuple[Tensor, Tensor]  # inputs, targets


class StashingStage:
    """One stage; with `stash`, backward meets the weights of its forward.

    `weights[m]` and `gradients[m]` are those of micro-batch m, as vectors:
    what its forward pass used, and what its backward pass found. `late[m]`
    counts the updates in between.
    """

    def __init__(self, module: nn.Module, lr: float, stash: bool) -> None:
        self.module, self.lr, self.stash = module, lr, stash
        self.updates = 0
        self.flying: dict[int, tuple[Tensor, Tensor, Weights, int]] = {}
        self.most_flying = 0
        self.weights: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.late: list[int] = []

    def forward(self, number: int, inputs: Tensor) -> Tensor:
        """The outputs of micro-batch `number`; keeps what backward needs."""
        weights: Weights = dict(self.module.named_parameters())
        if self.stash:
            weights = {
                name: weight.detach().clone().requires_grad_()
                for name, weight in weights.items()
            }
        inputs = inputs.detach().requires_grad_()
        outputs = functional_call(self.module, weights, (inputs,))
        self.flying[number] = inputs, outputs, weights, self.updates
        self.most_flying = max(self.most_flying, len(self.flying))
        self.weights.append(parameters_to_vector(weights.values()).detach())
        return outputs.detach()

    def backward(self, number: int, gradient: Tensor) -> Tensor:
        """Update at once; returns the gradient of the inputs."""
        inputs, outputs, weights, then = self.flying.pop(number)
        of_inputs, *found = torch.autograd.grad(
            outputs, [inputs, *weights.values()], gradient
        )
        # Through .data: autograd refuses to go back through weights that it
        # knows to have changed, and without the stash they have.
        for weight, its in zip(self.module.parameters(), found, strict=True):
            weight.data.sub_(self.lr * its)
        self.gradients.append(parameters_to_vector(found))
        self.late.append(self.updates - then)
        self.updates += 1
        return of_inputs


def train(
    stages: Sequence[StashingStage], batches: Sequence[Batch]
) -> list[float]:
    """1F1B over all micro-batches without a flush; their losses."""
    todo = [
        order(len(stages) - place, len(batches))
        for place in range(len(stages))
    ]
    arrived = {("F", 0, m): inputs for m, (inputs, _) in enumerate(batches)}
    losses: list[float] = []
    while any(todo):
        for place, passes in enumerate(todo):
            if (
                not passes
                or (passes[0][0], place, passes[0][1]) not in arrived
            ):
                continue  # has finished, or waits for its neighbour
            kind, number = passes.pop(0)
            tensor = arrived.pop((kind, place, number))
            if kind == "B":
                out = stages[place].backward(number, tensor)
                arrived["B", place - 1, number] = out
                continue
            out = stages[place].forward(number, tensor)
            if place + 1 < len(stages):
                arrived["F", place + 1, number] = out
            else:
                loss, out = _loss(out, batches[number][1])
                arrived["B", place, number] = out
                losses.append(loss)
    return losses


def order(in_flight: int, micro_batches: int) -> list[tuple[str, int]]:
    """The passes of a stage: fill, then one backward for one forward."""
    fill = min(in_flight, micro_batches)
    passes = [("F", number) for number in range(fill)]
    for number in range(micro_batches):
        passes.append(("B", number))
        if number + fill < micro_batches:
            passes.append(("F", number + fill))
    return passes


def gradients_at(
    modules: Sequence[nn.Module], weights: Sequence[Tensor], batch: Batch
) -> list[Tensor]:
    """The true gradient of each stage where the stages have these weights."""
    inputs, targets = batch
    leaves = [weight.clone().requires_grad_() for weight in weights]
    for module, flat in zip(modules, leaves, strict=True):
        inputs = functional_call(module, _unflat(module, flat), (inputs,))
    return list(torch.autograd.grad(mse_loss(inputs, targets), leaves))


def _loss(outputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    """The loss of a micro-batch and its gradient."""
    outputs = outputs.detach().requires_grad_()
    loss = mse_loss(outputs, targets)
    return float(loss.detach()), torch.autograd.grad(loss, outputs)[0]


def _unflat(module: nn.Module, flat: Tensor) -> Weights:
    named = dict(module.named_parameters())
    pieces = flat.split([weight.numel() for weight in named.values()])
    return {
        name: piece.view_as(weight)
        for (name, weight), piece in zip(named.items(), pieces, strict=True)
    }
