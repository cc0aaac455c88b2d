"""All-to-all of rows, through which autograd can propagate gradients."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup


class AllToAll(torch.autograd.Function):
    """Rows go to other ranks; in the backward pass their gradients return.

    The first `sent[0]` rows go to rank 0, the next `sent[1]` to rank 1, …
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sent: list[int],
        received: list[int],
        group: ProcessGroup,
    ) -> Tensor:
        ctx.back = (received, sent, group)
        return exchange(rows, sent, received, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return exchange(gradient.contiguous(), *ctx.back), None, None, None


def exchange(
    rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup
) -> Tensor:
    """One all-to-all of rows (rows, …); `sent[r]` of them go to rank r."""
    result = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(result, rows, received, sent, group=group)
    return result
