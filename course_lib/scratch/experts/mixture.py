"""A mixture of experts whose experts are spread over ranks."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch.experts.all_to_all import Dispatcher
from course_lib.scratch.experts.router import (
    Router,
    accepted,
    balance_loss,
    expert_capacity,
)


class MoE(nn.Module):
    """Sends each token through `top_k` of `experts` MLPs.

    Tokens beyond an expert's capacity are dropped: that choice adds nothing.
    After a forward pass `counts` and `kept`, both (ranks, experts), hold how
    many choices fell on each expert and how many of them it accepted;
    `balance` is this rank's balance loss.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        top_k: int,
        capacity_factor: float | None = None,
    ) -> None:
        super().__init__()
        self.router = Router(hidden, experts, top_k)
        self.experts = nn.ModuleDict(
            {str(number): mlp(hidden) for number in range(experts)}
        )
        self.capacity_factor = capacity_factor
        self.total, self.rank, self.ranks = experts, 0, 1
        self.dispatcher = Dispatcher()  # alone

    def spread(
        self, group: ProcessGroup, dispatcher: type[Dispatcher] = Dispatcher
    ) -> None:
        """Keep this rank's experts only: rank 0 has the first ones.

        `dispatcher` takes the tokens there and back. Lepikhin et al. 2020,
        arXiv:2006.16668, section 3.
        """
        self.dispatcher = dispatcher(group)
        self.rank, self.ranks = dist.get_rank(group), group.size()
        if self.total % self.ranks:
            raise ValueError(
                f"experts {self.total} is not divisible by ranks "
                f"{self.ranks}: make it a multiple"
            )
        for number in range(self.total):
            if number * self.ranks // self.total != self.rank:
                del self.experts[str(number)]

    def forward(self, x: Tensor) -> Tensor:  # (batch, sequence, hidden)
        tokens = x.flatten(0, -2)  # (tokens, hidden)
        chosen, weights, probabilities = self.router(tokens)
        self._count(chosen)
        self.balance = balance_loss(self.counts.sum(0), probabilities)
        rows = self.dispatcher.dispatch(tokens, chosen, self.kept)
        results = self._compute(rows)
        return self.dispatcher.combine(results, weights).view_as(x)

    @torch.no_grad()
    def _count(self, chosen: Tensor) -> None:
        """Counts of all ranks: they decide splits, capacity and balance."""
        self.counts = self.dispatcher.count(chosen, self.total)
        choices = int(self.counts.sum())
        capacity = expert_capacity(choices, self.total, self.capacity_factor)
        self.kept = accepted(self.counts, capacity)  # (ranks, experts)

    def _compute(self, rows: Tensor) -> Tensor:
        """Each row through its expert; sorted by rank, then by expert."""
        pieces = self.kept.view(self.ranks, self.ranks, -1)[:, self.rank]
        numbers = torch.arange(pieces.shape[1], device=rows.device)
        owner = numbers.repeat(self.ranks).repeat_interleave(pieces.flatten())
        results = torch.empty_like(rows)
        for number, expert in enumerate(self.experts.values()):
            results[owner == number] = expert(rows[owner == number])
        return results


def mlp(hidden: int) -> nn.Sequential:
    """One expert: the MLP of scratch.gpt."""
    return nn.Sequential(
        nn.Linear(hidden, 4 * hidden),
        nn.GELU(),
        nn.Linear(4 * hidden, hidden),
    )
