"""A vector of parameters of which each rank owns one part.

n ranks. A unit of P parameters is one vector, padded with zeros to n·s, with
s = ceil(P / n); rank r owns elements r·s to (r+1)·s of it.

FSDP cuts the same vector in the same places (`scratch.fsdp.flat_parameter`),
but never has it whole except for a pass, so it knows its parameters by name
and shape. Here all of it exists at first, and they are views of it.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.scratch import wire
from course_lib.scratch.zero.flat import flatten, views
from course_lib.scratch.zero.offload import OptimizerPlace


class Unit:
    """Parameters that are sent together: a layer's, or all the others."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        ranks: int,
        place: OptimizerPlace | None = None,
    ) -> None:
        self.parameters = list(parameters)
        self.place = place or OptimizerPlace()
        self.ranks = ranks  # over which it is cut; 1 if each owns all of it
        self.whole = flatten(self.parameters, ranks)  # (n·s)
        for parameter, view in views(self.whole, self.parameters):
            parameter.data = view
        self.own = self.part()  # (s)
        # In fp32 on the device this is the part itself, otherwise a copy.
        self.master = nn.Parameter(self.place.put(self.own.float()))
        self.gradient: Tensor | None = None  # (s), summed over ranks

    def part(self) -> Tensor:
        """This rank's part of the weights."""
        return self.whole.chunk(self.ranks)[dist.get_rank() % self.ranks]

    def reduce(self) -> None:
        """Keep only this rank's part of the sum of gradients."""
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad
            for p in self.parameters
        ]
        collective = wire.reduce_scatter if self.ranks > 1 else wire.all_reduce
        part = collective(flatten(gradients, self.ranks))
        self.gradient = part if self.gradient is None else self.gradient + part
        for parameter in self.parameters:
            parameter.grad = None

    def reduced(self) -> Tensor:
        """The gradient (s) that `reduce` left."""
        assert self.gradient is not None, "reduce comes first"
        return self.gradient

    def is_complete(self) -> bool:
        """Whether backward has made all gradients of the unit."""
        return all(p.grad is not None for p in self.parameters)

    def publish(self) -> None:
        """Give the updated part to all ranks."""
        self.round()
        if self.ranks > 1:
            wire.start_all_gather(self.whole, self.own).wait()

    def round(self) -> None:
        """Copy the updated fp32 part into the weights, if it is a copy."""
        if self.master.data_ptr() != self.own.data_ptr():
            self.place.fetch(self.master.detach(), self.own)
