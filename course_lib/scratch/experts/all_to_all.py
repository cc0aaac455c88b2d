"""Tokens to their experts on other ranks and back, with gradients."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from course_lib.scratch import wire
from course_lib.scratch.experts.router import by_expert


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


class Dispatcher:
    """Sends tokens to the ranks of their experts, and the results back.

    Rank 0 has the first experts, rank 1 as many, …; without a group there is
    one rank that has them all. Tokens are (tokens, hidden); `chosen` and
    `weights` are (tokens, top_k), so choice c is one of token c // top_k.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group) if group else 0
        self.ranks = group.size() if group else 1

    def count(self, chosen: Tensor, experts: int) -> Tensor:
        """Choices of each rank for each expert: (ranks, experts)."""
        own = torch.bincount(chosen.flatten(), minlength=experts)[None]
        return wire.all_gather(own, self.group) if self.group else own

    def dispatch(self, tokens: Tensor, chosen: Tensor, kept: Tensor) -> Tensor:
        """Rows for this rank's experts: sorted by rank, then by expert.

        `kept` (ranks, experts) says how many choices each expert accepts.
        """
        self.order = by_expert(chosen, kept[self.rank])
        by_owner = kept.view(self.ranks, self.ranks, -1).sum(2)
        self.sent = by_owner[self.rank].tolist()
        self.received = by_owner[:, self.rank].tolist()
        rows = tokens[self.order // chosen.shape[1]]
        return self.all_to_all(rows, self.sent, self.received)

    def combine(self, results: Tensor, weights: Tensor) -> Tensor:
        """For each token the weighted sum of its experts' results."""
        rows = self.all_to_all(results, self.received, self.sent)
        rows = rows * weights.flatten()[self.order].unsqueeze(1)
        out = rows.new_zeros(len(weights), rows.shape[1])
        return out.index_add(0, self.order // weights.shape[1], rows)

    def all_to_all(
        self, rows: Tensor, sent: list[int], received: list[int]
    ) -> Tensor:
        """`sent[r]` of the rows go to rank r, `received[r]` come from it."""
        if self.group is None:
            return rows
        return AllToAll.apply(rows, sent, received, self.group)
