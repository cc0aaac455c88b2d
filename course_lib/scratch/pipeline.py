"""Pipeline parallelism: running a schedule, and weight stashing."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss
from torch.nn.utils import parameters_to_vector

from course_lib.scratch.accumulation import (
    MicroBatch,
    count_tokens,
    loss_sum,
)
from course_lib.scratch.pipeline_stage import (
    Mail,
    Order,
    Part,
    Pass,
    Wires,
    sum_copied_gradients,
    sum_tied_gradients,
)

# Pipeline parallelism: each rank holds some layers and runs their passes.
#
# GPipe: Huang et al. 2018, arXiv:1811.06965, section 2.2; 1F1B and chunks:
# Narayanan et al. 2021, arXiv:2104.04473, section 2.2; a backward pass in two:
# Qi et al. 2023, arXiv:2401.10241, section 2, and section 6 for the V;
# bidirectional: DeepSeek-V3, arXiv:2412.19437, section 3.2.1.


# Input, output, and the output's gradient between the passes I and W.
_Held = tuple[Tensor, Tensor, Tensor | None]
_Run = Callable[[int, int, Tensor | None], Tensor | None]


class Pipeline:
    """Runs this stage's passes of one update in order, with real messages.

    `orders` has the passes of every stage (`pipeline_stage.Pass`).
    `loss_sum` computes the loss of logits and labels, summed over tokens.
    `way` is a micro-batch's path over the stages, see `pipeline_stage.Route`.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        orders: Sequence[Order],
        group: Wires,
        loss_sum: Callable[[Tensor, Tensor], Tensor] = loss_sum,
        way: str = "rounds",
    ) -> None:
        self.parts, self.orders, self.group = parts, orders, group
        self.way = way
        self.order = orders[dist.get_rank(group.up)]
        self.loss_sum = loss_sum
        self.do: dict[str, _Run] = {
            "F": self.forward,
            "B": self.backward,
            "I": self.backward_input,
            "W": self.backward_weight,
        }

    def run(self, window: Sequence[MicroBatch]) -> Tensor:
        """Leave in `.grad` the gradient of the mean loss over all tokens.

        Every stage gets all micro-batches, for their shapes; they may differ
        in size. Returns the mean loss on the stage with the last layer and 0
        on the others.
        """
        self.window, self.tokens = window, count_tokens(window)
        self.loss = torch.zeros((), device=self.tokens.device)
        self.held: dict[tuple[int, int], _Held] = {}  # by micro-batch, chunk
        mail = Mail(self.orders, self.group, self.blank, self.way)
        for work in self.order:
            result = self.compute(work, mail.take(work))
            mail.send(work, result)
        mail.finish()
        sum_tied_gradients(self.parts, self.group)
        if self.way == "both ways":
            sum_copied_gradients(self.parts, self.group)
        return self.loss

    def compute(self, work: Pass, arrived: Tensor | None) -> Tensor | None:
        """Run one pass; returns the tensor to send on, if any."""
        return self.do[work.kind](work.micro_batch, work.chunk, arrived)

    def forward(self, i: int, chunk: int, arrived: Tensor | None) -> Tensor:
        part, (tokens, labels) = self.parts[chunk], self.window[i]
        # The first piece takes tokens, the others (batch, sequence, hidden).
        x = tokens if arrived is None else arrived.requires_grad_()
        y = part(x)
        if part.last:
            y = self.loss_sum(y, labels) / self.tokens
            self.loss += y.detach()
        self.held[i, chunk] = x, y, None
        return y.detach()

    def backward(
        self, i: int, chunk: int, arrived: Tensor | None
    ) -> Tensor | None:
        x, y, _ = self.held.pop((i, chunk))
        y.backward(arrived)  # None where y is the loss
        return x.grad

    def backward_input(
        self, i: int, chunk: int, arrived: Tensor | None
    ) -> Tensor | None:
        x, y, _ = self.held[i, chunk]
        self.held[i, chunk] = x, y, arrived
        if x.requires_grad:
            y.backward(arrived, inputs=[x], retain_graph=True)
        return x.grad

    def backward_weight(self, i: int, chunk: int, _: Tensor | None) -> None:
        # Repeats the backward pass; real ones reuse what I has computed.
        _, y, arrived = self.held.pop((i, chunk))
        y.backward(arrived, inputs=list(self.parts[chunk].parameters()))

    def blank(self, i: int) -> Tensor:
        """A receive buffer (batch, sequence, hidden) for micro-batch i."""
        weight = next(self.parts[0].parameters())
        return weight.new_empty(*self.window[i][0].shape, self.parts[0].hidden)


# A pipeline that never flushes: stages update after each micro-batch.
#
# Between the forward and the backward pass of a micro-batch a stage updates
# its weights for others. PipeDream stashes the old weights for that backward
# pass: Harlap et al. 2018, arXiv:1806.03377; Narayanan et al. 2019, SOSP. All
# stages are in one process here, since only the order of their passes matters.


Weights = dict[str, Tensor]  # by name
Batch = tuple[Tensor, Tensor]  # inputs, targets


class StashingStage:
    """One stage; with `stash`, backward uses the weights of its forward.

    `weights[m]` and `gradients[m]` are, as vectors, the weights used by the
    forward pass of micro-batch m and the gradients of its backward pass.
    `late[m]` counts the updates in between.
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
        """The outputs of micro-batch `number`; saves them for backward."""
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
        inputs, outputs, weights, start = self.flying.pop(number)
        d_inputs, *d_weights = torch.autograd.grad(
            outputs, [inputs, *weights.values()], gradient
        )
        # Through .data: autograd refuses to run backward through weights that
        # it knows were modified, which they are without the stash.
        pairs = zip(self.module.parameters(), d_weights, strict=True)
        for weight, d_weight in pairs:
            weight.data.sub_(self.lr * d_weight)
        self.gradients.append(parameters_to_vector(d_weights))
        self.late.append(self.updates - start)
        self.updates += 1
        return d_inputs


def train(
    stages: Sequence[StashingStage], batches: Sequence[Batch]
) -> list[float]:
    """Run 1F1B over all micro-batches without a flush; returns losses."""
    todo = [
        order(len(stages) - stage, len(batches))
        for stage in range(len(stages))
    ]
    arrived = {("F", 0, m): inputs for m, (inputs, _) in enumerate(batches)}
    losses: list[float] = []
    while any(todo):
        for stage, passes in enumerate(todo):
            if (
                not passes
                or (passes[0][0], stage, passes[0][1]) not in arrived
            ):
                continue  # finished, or waiting for a neighbour
            kind, number = passes.pop(0)
            tensor = arrived.pop((kind, stage, number))
            if kind == "B":
                out = stages[stage].backward(number, tensor)
                arrived["B", stage - 1, number] = out
                continue
            out = stages[stage].forward(number, tensor)
            if stage + 1 < len(stages):
                arrived["F", stage + 1, number] = out
            else:
                loss, out = _loss(out, batches[number][1])
                arrived["B", stage, number] = out
                losses.append(loss)
    return losses


def order(in_flight: int, micro_batches: int) -> list[tuple[str, int]]:
    """The passes of a stage: warm-up forwards, then 1F1B."""
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
    """The exact gradient of each stage at these weights (flat vectors)."""
    inputs, targets = batch
    leaves = [weight.clone().requires_grad_() for weight in weights]
    for module, flat in zip(modules, leaves, strict=True):
        inputs = functional_call(module, _unflat(module, flat), (inputs,))
    return list(torch.autograd.grad(mse_loss(inputs, targets), leaves))


def _loss(outputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    """The loss of a micro-batch and its gradient by the outputs."""
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
