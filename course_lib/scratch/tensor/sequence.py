"""Sequence parallelism: between the cut matrices each rank has some tokens.

Tensor parallelism repeats norms and residuals on every rank. Here they are cut
along the sequence: an all-reduce becomes a reduce-scatter, and an all-gather
before the next pair; together they send as many bytes.
Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup

from course_lib.scratch.tensor.region import Pair, TensorParallel
from course_lib.scratch.wire import all_gather, all_reduce, reduce_scatter


class Gather(Function):
    """Replaces f, into a pair: (b, s / ranks, h) -> (b, s, h)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _along_sequence(all_gather, x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _along_sequence(reduce_scatter, gradient, ctx.group), None


class SumScatter(Function):
    """Replaces g, out of a pair: (b, s, h) -> (b, s / ranks, h)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _along_sequence(reduce_scatter, x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _along_sequence(all_gather, gradient, ctx.group), None


def _along_sequence(
    collective: Callable[..., Tensor], x: Tensor, group: ProcessGroup | None
) -> Tensor:
    # Collectives join and cut the first dimension; the sequence is the second.
    return collective(x.transpose(0, 1), group).transpose(0, 1).contiguous()


class SequenceParallel(TensorParallel):
    """The region outside the pairs is cut along the sequence."""

    def __init__(
        self,
        group: ProcessGroup | None = None,
        pair: Pair | None = None,
        *,
        gather: type[Function] = Gather,
        sum_scatter: type[Function] = SumScatter,
    ) -> None:
        super().__init__(group, pair)
        self.gather, self.sum_scatter = gather, sum_scatter

    def enter(self, x: Tensor) -> Tensor:
        """Before a matrix cut by columns: all tokens."""
        return self.gather.apply(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """After a matrix cut by rows: this rank's tokens."""
        if x.shape[1] % self.ranks:
            raise ValueError(
                f"sequence {x.shape[1]} is not divisible by {self.ranks} ranks"
                ": pad it, or do without sequence parallelism"
            )
        return self.sum_scatter.apply(x, self.group)

    def own_tokens(self, places: Tensor) -> Tensor:
        """The places of this rank's tokens."""
        return places.chunk(self.ranks)[self.rank]


def sum_copied_gradients(model: nn.Module, region: TensorParallel) -> None:
    """Add up the gradients of what every rank holds whole: norms, biases.

    Each rank saw only its own tokens there. One all-reduce carries them all.
    """
    whole = (p for p in model.parameters() if not hasattr(p, "cut"))
    copied = [p.grad for p in whole if p.grad is not None]
    total = all_reduce(torch.cat([g.flatten() for g in copied]), region.group)
    pieces = total.split([g.numel() for g in copied])
    for gradient, piece in zip(copied, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))
