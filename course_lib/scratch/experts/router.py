"""The router of a mixture of experts: which token goes to which expert."""

from math import ceil

import torch
from torch import Tensor, nn


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
        """Experts and weights (tokens, top_k), probabilities of all experts.

        Tokens are (tokens, hidden).
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
    """Choices that one expert accepts: `factor` times the mean, rounded up.

    All of them where `factor` is None. `choices` is tokens · top_k. Fedus et
    al. 2021, arXiv:2101.03961, equation 3.
    """
    return choices if factor is None else ceil(factor * choices / experts)


def accepted(counts: Tensor, capacity: int) -> Tensor:
    """How many of `counts` (ranks, experts) the experts accept, same shape.

    First come, first served: rank 0's tokens before rank 1's, and on a rank
    in their order. So it is the same as on one process with all tokens.
    """
    before = counts.cumsum(0) - counts  # choices of the ranks before
    return torch.minimum(counts, (capacity - before).clamp(min=0))


def by_expert(chosen: Tensor, kept: Tensor) -> Tensor:
    """Numbers of this rank's accepted choices, sorted by expert.

    Of the choices of expert e in `chosen` (tokens, top_k) the first `kept[e]`.
    """
    order = chosen.flatten().argsort(stable=True)
    expert = chosen.flatten()[order]
    counts = torch.bincount(expert, minlength=len(kept))
    place = torch.arange(len(order), device=order.device)
    place = (
        place - (counts.cumsum(0) - counts)[expert]
    )  # in its expert's queue
    return order[place < kept[expert]]


def balance_loss(load: Tensor, probabilities: Tensor) -> Tensor:
    """N Σ f_i P_i: 1 when all N experts are equally busy, at most N / top_k.

    f_i is the share of all choices that fell on expert i (`load` counts them,
    of all ranks), P_i the mean probability of expert i. Fedus et al. 2021,
    arXiv:2101.03961, equation 4, without its factor α.
    """
    share = load / load.sum()
    return len(load) * (share * probabilities.mean(0)).sum()
