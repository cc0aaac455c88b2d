"""Pipeline parallelism: each rank holds some layers and runs its passes.

GPipe: Huang et al. 2018, arXiv:1811.06965, section 2.2; 1F1B and chunks:
Narayanan et al. 2021, arXiv:2104.04473, section 2.2; a backward pass in two:
Qi et al. 2023, arXiv:2401.10241, section 2, and section 6 for the V; both
ways: DeepSeek-V3, arXiv:2412.19437, section 3.2.1.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.scratch.accumulation import (
    MicroBatch,
    count_tokens,
    loss_sum,
)
from course_lib.scratch.pipeline.letters import Order, Pass
from course_lib.scratch.pipeline.mail import Mail
from course_lib.scratch.pipeline.stage import (
    Part,
    Wires,
    sum_copied_gradients,
    sum_tied_gradients,
)

# Input, output, and the gradient of the output where I has it and W not yet.
_Held = tuple[Tensor, Tensor, Tensor | None]
_Run = Callable[[int, int, Tensor | None], Tensor | None]


class Pipeline:
    """This stage's passes of one update, in their order, on real messages.

    `orders` has the passes of every stage, as `letters.Pass` describes them.
    `loss_sum` gives the loss, summed over tokens, of logits and labels.
    `way` is that of a micro-batch over the stages, as in `letters.Route`.
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
        in size. Returns the mean loss on the stage with the model's end and
        0 on the others.
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
        """One pass; it returns what the next piece, or the previous, needs."""
        return self.do[work.kind](work.micro_batch, work.chunk, arrived)

    def forward(self, i: int, chunk: int, arrived: Tensor | None) -> Tensor:
        part, (tokens, labels) = self.parts[chunk], self.window[i]
        # The first piece gets tokens, the others (batch, sequence, hidden).
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
        # Walks through the layers again; real ones keep what I has computed.
        _, y, arrived = self.held.pop((i, chunk))
        y.backward(arrived, inputs=list(self.parts[chunk].parameters()))

    def blank(self, i: int) -> Tensor:
        """Room for a message: (batch, sequence, hidden) of micro-batch i."""
        weight = next(self.parts[0].parameters())
        return weight.new_empty(*self.window[i][0].shape, self.parts[0].hidden)
