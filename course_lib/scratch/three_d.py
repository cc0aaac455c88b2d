"""Data, tensor and pipeline parallelism on one mesh of ranks.

Tensor parallelism sends most, so its ranks are neighbours; pipeline stages
send least and are furthest apart: rank = (pp · DP + dp) · TP + tp.
Narayanan et al. 2021, arXiv:2104.04473, section 3; Megatron-LM's order.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.scratch import wire
from course_lib.scratch.gpt import GPT
from course_lib.scratch.pipeline import Pipeline
from course_lib.scratch.pipeline_stage import Order, cut, wires
from course_lib.scratch.tensor import (
    Pair,
    TensorParallel,
    cut_gpt,
    vocab_parallel_cross_entropy,
)
from course_lib.scratch.zero import flatten, views

CutLoss = Callable[[Tensor, Tensor, TensorParallel], Tensor]
SumOver = Callable[[Tensor, ProcessGroup], Tensor]


class Coordinates(NamedTuple):
    """The coordinates of a rank on the mesh, or the size of each axis."""

    pp: int
    dp: int
    tp: int


class Mesh:
    """All ranks as a pp × dp × tp mesh, with this rank's group on each axis.

    The ranks of a line along an axis form a group.
    """

    def __init__(self, dp: int, tp: int, pp: int) -> None:
        self.size = Coordinates(pp, dp, tp)
        self.place = self.place_of(dist.get_rank())
        self.wires = wires(self.lines("pp"))
        self.dp = own_group(self.lines("dp"))
        self.tp = own_group(self.lines("tp"))

    def place_of(self, rank: int) -> Coordinates:
        """The coordinates of `rank`."""
        rest, tp = divmod(rank, self.size.tp)
        return Coordinates(*divmod(rest, self.size.dp), tp)

    def lines(self, axis: str) -> list[list[int]]:
        """All lines of ranks along axis "pp", "dp" or "tp", in order."""
        ranks = torch.arange(prod(self.size)).view(self.size)  # (pp, dp, tp)
        # -> (other · other, size of the axis)
        dim = self.size._fields.index(axis)
        return ranks.movedim(dim, -1).flatten(0, 1).tolist()


def axes(mesh: Mesh) -> dict[str, str]:
    """The axis of each of this rank's groups, by the group's name."""
    groups = {"dp": [mesh.dp], "tp": [mesh.tp], "pp": mesh.wires}
    return {
        group.group_name: axis
        for axis, several in groups.items()
        for group in several
        if isinstance(group, ProcessGroup)  # not a non-member placeholder
    }


def own_group(lines: Sequence[Sequence[int]]) -> ProcessGroup:
    """This rank's group among `lines`; a collective call, with all lines."""
    group, _ = dist.new_subgroups_by_enumeration(lines)
    return group


class ThreeD:
    """This rank's part of a GPT: 1/tp of each matrix of its stage's layers.

    Replaceable parts: `pair` and `cross_entropy` shard matrices and
    vocabulary, `pipeline` runs the passes, `all_reduce` sums over dp.
    """

    def __init__(
        self,
        model: GPT,
        mesh: Mesh,
        layers: Sequence[int],
        orders: Sequence[Order],
        *,
        pair: Pair | None = None,
        cross_entropy: CutLoss = vocab_parallel_cross_entropy,
        pipeline: type[Pipeline] = Pipeline,
        all_reduce: SumOver = wire.all_reduce,
    ) -> None:
        self.mesh, self.region = mesh, TensorParallel(mesh.tp, pair)
        self.cross_entropy, self.all_reduce = cross_entropy, all_reduce
        whole = cut_gpt(model, self.region)
        self.parts = cut(whole, layers, mesh.place.pp, mesh.size.pp)
        self.pipeline = pipeline(self.parts, orders, mesh.wires, self.loss_sum)

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The summed loss from vocabulary-parallel logits."""
        return self.cross_entropy(logits, labels, self.region).sum()

    def run(self, inputs: Tensor, labels: Tensor, pieces: int) -> Tensor:
        """Compute the gradients of a whole batch (batch, sequence).

        Each dp rank takes its rows, in `pieces` micro-batches. Returns this
        rank's share of the loss: all shares add up to the mean.
        """
        rows = [part.chunk(self.mesh.size.dp) for part in (inputs, labels)]
        mine = [part[self.mesh.place.dp].chunk(pieces) for part in rows]
        loss = self.pipeline.run(list(zip(*mine, strict=True)))
        self.average_gradients()
        return loss / (self.mesh.size.dp * self.mesh.size.tp)

    def average_gradients(self) -> None:
        """All-reduce over dp: once for the layers, once for the rest."""
        layers = [p for x in self.parts for p in x.blocks.parameters()]
        every = {p: None for x in self.parts for p in x.parameters()}
        ends = [p for p in every if not any(p is other for other in layers)]
        for group in (layers, ends):
            gradients = [p.grad for p in group if p.grad is not None]
            if gradients:
                total = self.all_reduce(flatten(gradients, 1), self.mesh.dp)
                mean = total / self.mesh.size.dp
                for gradient, part in views(mean, gradients):
                    gradient.copy_(part)
