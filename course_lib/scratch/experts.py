"""Mixture of experts, and expert parallelism."""

from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from course_lib.scratch import wire
from course_lib.scratch.gpt import mlp

# The router of a mixture of experts assigns tokens to experts.


class Router(nn.Module):
    """Scores all experts for each token and keeps the best `top_k`.

    Shazeer et al. 2017, arXiv:1701.06538, section 2.1; Lepikhin et al. 2020,
    arXiv:2006.16668, section 2.2. The weights of a token's experts add up to
    1. With one expert its weight is its probability, or the router would not
    learn: Fedus et al. 2021, arXiv:2101.03961, section 2.1.
    """

    def __init__(self, hidden: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.scores = nn.Linear(hidden, experts, bias=False)
        self.top_k = top_k

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Route (tokens, hidden) to experts; returns probabilities as well.

        Chosen experts and weights are (tokens, top_k).
        """
        probabilities = self.scores(tokens).softmax(-1)  # (tokens, experts)
        chosen = self.choose(probabilities)
        weights = probabilities.gather(1, chosen)
        if self.top_k > 1:
            weights = weights / weights.sum(1, keepdim=True)
        return chosen, weights, probabilities

    def choose(self, probabilities: Tensor) -> Tensor:
        """The `top_k` most probable experts of each token."""
        return probabilities.topk(self.top_k).indices


def expert_capacity(choices: int, experts: int, factor: float | None) -> int:
    """How many choices one expert accepts: `factor` · the mean, rounded up.

    Unlimited where `factor` is None. `choices` is tokens · top_k. Fedus et
    al. 2021, arXiv:2101.03961, equation 3.
    """
    return choices if factor is None else ceil(factor * choices / experts)


def accepted(counts: Tensor, capacity: int) -> Tensor:
    """How many of `counts` (ranks, experts) the experts accept, same shape.

    First come, first served: rank 0's tokens before rank 1's, and in order
    within a rank, so the result is that of one process with all tokens.
    """
    before = counts.cumsum(0) - counts  # choices of lower ranks
    return torch.minimum(counts, (capacity - before).clamp(min=0))


def by_expert(chosen: Tensor, kept: Tensor) -> Tensor:
    """Indices of this rank's accepted choices, sorted by expert.

    Keeps the first `kept[e]` choices of expert e in `chosen` (tokens, top_k).
    """
    order = chosen.flatten().argsort(stable=True)
    expert = chosen.flatten()[order]
    counts = torch.bincount(expert, minlength=len(kept))
    first = counts.cumsum(0) - counts  # index of each expert's first choice
    position = torch.arange(len(order), device=order.device) - first[expert]
    return order[position < kept[expert]]  # position in its expert's queue


def balance_loss(load: Tensor, probabilities: Tensor) -> Tensor:
    """N Σ f_i P_i: 1 when all N experts are equally busy, at most N / top_k.

    f_i is the fraction of all choices that chose expert i (`load` has their
    counts over all ranks), P_i its mean probability. Fedus et al. 2021,
    arXiv:2101.03961, equation 4, without its factor α.
    """
    share = load / load.sum()
    return len(load) * (share * probabilities.mean(0)).sum()


# A router balanced by a bias instead of an auxiliary loss.


class BiasedRouter(Router):
    """Adds a per-expert bias to the probabilities, for the choice only.

    The weights of the chosen experts still come from the probabilities, and no
    gradient reaches the bias: `nudge` moves it after each update. DeepSeek-V3,
    arXiv:2412.19437, section 2.1.2; Wang et al. 2024, arXiv:2408.15664.
    """

    bias: Tensor

    def __init__(self, hidden: int, experts: int, top_k: int) -> None:
        super().__init__(hidden, experts, top_k)
        self.register_buffer("bias", torch.zeros(experts))

    def choose(self, probabilities: Tensor) -> Tensor:
        """The `top_k` best experts of each token, by probability plus bias."""
        return super().choose(probabilities + self.bias)

    def nudge(self, load: Tensor, speed: float) -> None:
        """Raise the bias by `speed` below the mean load, lower it above.

        `load` counts each expert's choices over all ranks, so all ranks apply
        the same change without communicating.
        """
        load = load.to(self.bias)
        self.bias += speed * (load.mean() - load).sign()


# Sending tokens to experts on other ranks and back, with gradients.


class AllToAll(torch.autograd.Function):
    """All-to-all of rows; backward sends their gradients back.

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
    """One all-to-all of (rows, …): `sent[r]` rows to rank r, by rank."""
    result = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(result, rows, received, sent, group=group)
    return result


class Dispatcher:
    """Sends tokens to the ranks of their experts, and the results back.

    Experts are divided evenly, in order of rank; without a group one rank has
    them all. Tokens are (tokens, hidden); `chosen` and `weights` are
    (tokens, top_k), so choice c belongs to token c // top_k.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group) if group else 0
        self.ranks = group.size() if group else 1

    def count(self, chosen: Tensor, experts: int) -> Tensor:
        """How often each rank chose each expert: (ranks, experts)."""
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
        """The weighted sum of each token's expert results."""
        rows = self.all_to_all(results, self.received, self.sent)
        rows = rows * weights.flatten()[self.order].unsqueeze(1)
        out = rows.new_zeros(len(weights), rows.shape[1])
        return out.index_add(0, self.order // weights.shape[1], rows)

    def all_to_all(
        self, rows: Tensor, sent: list[int], received: list[int]
    ) -> Tensor:
        """Send `sent[r]` rows to rank r and receive `received[r]` from it."""
        if self.group is None:
            return rows
        return AllToAll.apply(rows, sent, received, self.group)


# A mixture-of-experts layer whose experts are distributed over ranks.


class MoE(nn.Module):
    """Sends each token through `top_k` of `experts` MLPs.

    Tokens beyond an expert's capacity are dropped: that choice adds nothing.
    After a forward pass `counts` and `kept`, both (ranks, experts), hold how
    often each expert was chosen and how many choices it accepted; `balance`
    is this rank's balance loss.
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
        self.dispatcher = Dispatcher()  # all experts on this rank

    def spread(
        self, group: ProcessGroup, dispatcher: type[Dispatcher] = Dispatcher
    ) -> None:
        """Keep only this rank's experts; rank 0 has the first ones.

        `dispatcher` moves the tokens there and back. Lepikhin et al. 2020,
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
        """Gather all ranks' counts, which set splits, capacity and balance."""
        self.counts = self.dispatcher.count(chosen, self.total)
        choices = int(self.counts.sum())
        capacity = expert_capacity(choices, self.total, self.capacity_factor)
        self.kept = accepted(self.counts, capacity)  # (ranks, experts)

    def _compute(self, rows: Tensor) -> Tensor:
        """Apply each row's expert; rows are sorted by rank, then by expert."""
        pieces = self.kept.view(self.ranks, self.ranks, -1)[:, self.rank]
        numbers = torch.arange(pieces.shape[1], device=rows.device)
        owner = numbers.repeat(self.ranks).repeat_interleave(pieces.flatten())
        results = torch.empty_like(rows)
        for number, expert in enumerate(self.experts.values()):
            results[owner == number] = expert(rows[owner == number])
        return results
