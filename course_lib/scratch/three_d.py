"""Data, tensor and pipeline parallelism on one mesh of ranks.

Tensor parallelism sends most, so its ranks are neighbours; pipeline stages
send least and lie furthest apart: rank = (pp · DP + dp) · TP + tp.
Narayanan et al. 2021, arXiv:2104.04473, section 3; Megatron-LM's order.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.scratch.gpt import GPT
from course_lib.scratch.pipeline.mail import Order
from course_lib.scratch.pipeline.runtime import Pipeline
from course_lib.scratch.pipeline.stage import cut, wires
from course_lib.scratch.tensor.region import Pair, TensorParallel
from course_lib.scratch.tensor.vocabulary import (
    cut_gpt,
    vocab_parallel_cross_entropy,
)
from course_lib.scratch.zero.flat import flatten, views

CutLoss = Callable[[Tensor, Tensor, TensorParallel], Tensor]


class Coordinates(NamedTuple):
    """Where a rank stands on the mesh; also the size of the mesh by axis."""

    pp: int
    dp: int
    tp: int


class Mesh:
    """All ranks as a block of pp × dp × tp, and this rank's lines through it.

    The ranks of a line differ in one coordinate only; they are a group.
    """

    def __init__(self, dp: int, tp: int, pp: int) -> None:
        ranks = torch.arange(pp * dp * tp).view(pp, dp, tp)
        self.size = Coordinates(pp, dp, tp)
        self.place = self.place_of(dist.get_rank())
        self.wires = wires(_lines(ranks, 0))
        self.dp, self.tp = (_own_group(_lines(ranks, dim)) for dim in (1, 2))

    def place_of(self, rank: int) -> Coordinates:
        """Coordinates of a rank."""
        rest, tp = divmod(rank, self.size.tp)
        return Coordinates(*divmod(rest, self.size.dp), tp)

    def axes(self) -> dict[str, str]:
        """The axis of each of this rank's groups, by the group's name."""
        groups = {"dp": [self.dp], "tp": [self.tp], "pp": self.wires}
        return {
            group.group_name: axis
            for axis, several in groups.items()
            for group in several
            if isinstance(group, ProcessGroup)  # not an end of the pipeline
        }


def _lines(ranks: Tensor, dim: int) -> list[list[int]]:
    """All lines of ranks along one dimension of the mesh."""
    # (pp, dp, tp) -> (other · other, size of the dimension)
    return ranks.movedim(dim, -1).flatten(0, 1).tolist()


def _own_group(lines: Sequence[Sequence[int]]) -> ProcessGroup:
    group, _ = dist.new_subgroups_by_enumeration(lines)
    return group


class ThreeD:
    """This rank's part of a GPT: 1/tp of each matrix of its stage's layers.

    `pair` and `cross_entropy`: what cuts matrices and vocabulary.
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
    ) -> None:
        self.mesh, self.region = mesh, TensorParallel(mesh.tp, pair)
        self.cross_entropy = cross_entropy
        whole = cut_gpt(model, self.region)
        self.parts = cut(whole, layers, mesh.place.pp, mesh.size.pp)
        self.pipeline = Pipeline(self.parts, orders, mesh.wires, self.loss_sum)

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss; each tp rank has the logits of its own words."""
        return self.cross_entropy(logits, labels, self.region).sum()

    def run(self, inputs: Tensor, labels: Tensor, pieces: int) -> Tensor:
        """Gradients of the whole batch (batch, sequence), and a share of loss.

        Each dp rank takes its rows, in `pieces` micro-batches. The shares of
        all ranks add up to the mean loss.
        """
        rows = [part.chunk(self.mesh.size.dp) for part in (inputs, labels)]
        mine = [part[self.mesh.place.dp].chunk(pieces) for part in rows]
        loss = self.pipeline.run(list(zip(*mine, strict=True)))
        self.average_gradients()
        return loss / (self.mesh.size.dp * self.mesh.size.tp)

    def average_gradients(self) -> None:
        """One all-reduce over dp for the layers, one for what is outside."""
        layers = [p for x in self.parts for p in x.blocks.parameters()]
        every = {p: None for x in self.parts for p in x.parameters()}
        ends = [p for p in every if not any(p is other for other in layers)]
        for group in (layers, ends):
            gradients = [p.grad for p in group if p.grad is not None]
            if gradients:
                flat = flatten(gradients, ranks=1)
                dist.all_reduce(flat, group=self.mesh.dp)
                flat /= self.mesh.size.dp
                for gradient, mean in views(flat, gradients):
                    gradient.copy_(mean)
