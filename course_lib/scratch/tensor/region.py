"""The ranks that share each matrix, Megatron's f and g, and the cut matrices.

Between f and g every rank works on its own part of a pair of matrices: the
first is cut by columns, the second by rows, so that nothing is exchanged in
between. Outside they all have the same tokens.
Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup
from torch.nn.functional import linear

from course_lib.scratch.wire import all_gather, all_reduce


class Copy(Function):
    """Megatron's f: every rank takes the input, so its gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return all_reduce(gradient, ctx.group), None


class Sum(Function):
    """Megatron's g: the parts add up, and each gets the sum's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class ColumnParallelLinear(nn.Module):
    """Cut by outputs: (…, in) -> (…, out / ranks)."""

    def __init__(
        self, whole: nn.Linear, region: "TensorParallel", parts: int = 1
    ) -> None:
        super().__init__()
        self.region = region
        self.weight = region.cut(whole.weight, 0, parts)
        self.bias = region.cut(whole.bias, 0, parts)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.region.enter(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """Cut by inputs: (…, in / ranks) -> (…, out)."""

    def __init__(self, whole: nn.Linear, region: "TensorParallel") -> None:
        super().__init__()
        self.region = region
        self.weight = region.cut(whole.weight, 1)
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        # The bias comes after the sum, or it would be added once per rank.
        return self.region.leave(linear(x, self.weight)) + self.bias


class Pair(NamedTuple):
    """What a pair of cut matrices is made of; somebody else may write it."""

    f: type[Function] = Copy
    g: type[Function] = Sum
    column: type[nn.Module] = ColumnParallelLinear
    row: type[nn.Module] = RowParallelLinear


class TensorParallel:
    """The ranks that share each matrix, and the way in and out of a pair."""

    def __init__(
        self, group: ProcessGroup | None = None, pair: Pair | None = None
    ) -> None:
        self.group, self.pair = group, pair or Pair()
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)

    def enter(self, x: Tensor) -> Tensor:
        """Before a matrix cut by columns."""
        return self.pair.f.apply(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """After a matrix cut by rows."""
        return self.sum(x)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks, whole on each, by g."""
        return self.pair.g.apply(x, self.group)

    def own_tokens(self, places: Tensor) -> Tensor:
        """The places in the sequence whose norms this rank computes."""
        return places

    def cut(self, whole: Tensor, dim: int = 0, parts: int = 1) -> nn.Parameter:
        """This rank's share of each of `parts` equal parts, as a parameter.

        Its attribute `cut` has the arguments with which `join` makes it whole.
        """
        ranks, size = self.ranks, whole.shape[dim] // parts
        if size % ranks:
            raise ValueError(
                f"size {size} of a matrix of shape {tuple(whole.shape)} is not"
                f" divisible by {ranks} ranks: change it or the ranks"
            )
        shares = [part.chunk(ranks, dim) for part in whole.chunk(parts, dim)]
        mine = torch.cat([share[self.rank] for share in shares], dim)
        parameter: Any = nn.Parameter(mine.detach().clone())
        parameter.cut = {"dim": dim, "parts": parts}
        return parameter

    def join(
        self, share: Tensor, dim: int, parts: int, rows: int | None = None
    ) -> Tensor:
        """What `cut` took shares of, made whole by one all-gather."""
        shares = all_gather(share[None], self.group)  # (ranks, …)
        pieces = [one.chunk(parts, dim) for one in shares]
        columns = zip(*pieces, strict=True)  # the ranks' pieces of each part
        return torch.cat([p for part in columns for p in part], dim)[:rows]
