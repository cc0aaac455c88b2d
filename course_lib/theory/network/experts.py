"""Expert load and capacity, dropped choices, and the bytes of the all-to-alls."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, comb
from typing import Annotated

from course_lib.checked import Count, CountOrZero, NotNegative, check_public
from course_lib.theory.network.collectives import bus_factor
from course_lib.validation import divisible, number, whole

_MOST_EXPERTS = 65_536
_MOST_TOKENS = 10**12
_Experts = Annotated[int, partial(whole, most=_MOST_EXPERTS)]


@dataclass(frozen=True)
class ExpertLoad:
    """The load of each expert, in choices, and the experts' common capacity.

    A token makes `top_k` choices. Experts are distributed evenly over `ranks`, in order;
    `row_bytes` are the bytes sent per token.
    """

    load: tuple[CountOrZero, ...]
    top_k: Count
    capacity: Count
    ranks: Count
    row_bytes: Count

    def __post_init__(self) -> None:
        whole("experts", len(self.load), most=_MOST_EXPERTS)
        whole("choices", sum(self.load))
        _choices(self.top_k, len(self.load))
        divisible("experts", len(self.load), "ranks", self.ranks)

    @property
    def choices(self) -> int:
        """Total choices: tokens · top_k."""
        return sum(self.load)

    @property
    def mean(self) -> float:
        """Choices per expert: choices / experts."""
        return self.choices / len(self.load)

    @property
    def imbalance(self) -> float:
        """Load of the busiest expert over the mean; 1 if all are equal."""
        return max(self.load) / self.mean

    @property
    def accepted(self) -> tuple[int, ...]:
        """Choices accepted by each expert: min(load, capacity)."""
        return tuple(min(choices, self.capacity) for choices in self.load)

    @property
    def dropped(self) -> int:
        """Choices dropped because they exceed their expert's capacity."""
        return self.choices - sum(self.accepted)

    @property
    def dropped_fraction(self) -> float:
        """Fraction of choices that are dropped: dropped / choices."""
        return self.dropped / self.choices

    @property
    def rank_load(self) -> tuple[int, ...]:
        """Accepted choices per rank: the rows that each rank receives."""
        per_rank, accepted = len(self.load) // self.ranks, self.accepted
        starts = range(0, len(self.load), per_rank)
        return tuple(sum(accepted[start : start + per_rank]) for start in starts)

    @property
    def rank_imbalance(self) -> float:
        """Rows of the busiest rank, for which the others wait, over the mean."""
        return max(self.rank_load) * self.ranks / sum(self.rank_load)

    @property
    def dispatch_bytes(self) -> float:
        """Bytes of a rank's input to one all-to-all: accepted choices · row_bytes / ranks.

        Tokens are distributed evenly over the ranks. Rows that stay on their rank are included.
        """
        return sum(self.accepted) * self.row_bytes / self.ranks

    @property
    def travelling_bytes(self) -> float:
        """The part of `dispatch_bytes` that leaves the rank under uniform routing: (n-1)/n."""
        return self.dispatch_bytes * bus_factor("all-to-all", self.ranks)

    @property
    def received_bytes(self) -> int:
        """Bytes that the busiest rank receives in one dispatch."""
        return max(self.rank_load) * self.row_bytes


def capacity(
    choices: Annotated[int, partial(whole, most=_MOST_TOKENS * _MOST_EXPERTS)],
    experts: _Experts,
    factor: Annotated[float, partial(number, above=0, most=_MOST_EXPERTS)] | None,
) -> int:
    """Choices that one expert accepts: factor · choices / experts, rounded up; None: all.

    Source: Fedus et al. 2021, arXiv:2101.03961, equation 3 (there top_k is 1).
    """
    if factor is None:
        return choices
    return ceil(factor * choices / experts)


def _choices(top_k: int, experts: int) -> None:
    if top_k > experts:
        raise ValueError(
            f"top_k {top_k} is above experts {experts}, and a token chooses different ones: "
            f"take at most {experts}"
        )


def nodes_of_a_token(experts: _Experts, top_k: Count, nodes: int) -> float:
    """Expected number of nodes with a token's experts, if all sets of `top_k` are equally likely.

    nodes · (1 − probability that a given node has none of them). Raises ValueError for more nodes
    or choices than experts.
    """
    _choices(top_k, experts)
    whole("nodes", nodes, most=experts)
    elsewhere = experts - -(-experts // nodes)
    return nodes * (1 - comb(elsewhere, top_k) / comb(experts, top_k))


def routed_intensity(width: Count, *, matrices: Count = 3, element_bytes: Count = 2) -> float:
    """FLOP of the experts per byte of tokens sent to them, forward and backward.

    A row of h elements is sent four times: dispatch and combine, for activations and gradients. Its
    expert has `matrices` · h · width weights, with 6 FLOP each:
    6·matrices·h·width / (4·h·bytes), so h and the tokens cancel. Bytes include those that stay on
    the rank. Source: from Lepikhin et al. 2020, arXiv:2006.16668, section 3.
    """
    return 1.5 * matrices * width / element_bytes


def zipf_load(
    tokens: Annotated[int, partial(whole, most=_MOST_TOKENS)],
    experts: _Experts,
    top_k: Count,
    skew: Annotated[float, partial(number, least=0, most=10)],
) -> tuple[int, ...]:
    """Expected load of each expert if expert i has popularity 1 / i^skew, i = 1, 2, …

    A token chooses `top_k` different experts, so none gets more than `tokens`; the excess goes to
    the others in proportion. Loads are rounded to integers that sum to tokens · top_k (largest
    remainders first). Skew 0: uniform.
    """
    _choices(top_k, experts)
    exact = [tokens * share for share in _shares(experts, top_k, skew)]
    load = [int(choices) for choices in exact]
    remainders = sorted(range(experts), key=lambda expert: load[expert] - exact[expert])
    for expert in remainders[: tokens * top_k - sum(load)]:
        load[expert] += 1
    return tuple(load)


def _shares(experts: int, top_k: int, skew: float) -> list[float]:
    """Fraction of tokens that choose each expert, in decreasing order: at most 1, sum top_k."""
    weights = [(index + 1) ** -skew for index in range(experts)]
    rest = sum(weights)
    for full, weight in enumerate(weights):
        scale = (top_k - full) / rest
        if scale * weight < 1:
            return [1.0] * full + [scale * one for one in weights[full:]]
        rest = sum(weights[full + 1 :])
    return [1.0] * experts


def expert_load(
    tokens: int,
    experts: int,
    top_k: int = 1,
    *,
    capacity_factor: float | None = None,
    ranks: int = 1,
    row_bytes: int = 2,
    skew: float = 0.0,
) -> ExpertLoad:
    """The ExpertLoad for the load from `zipf_load` and the capacity from `capacity`."""
    load = zipf_load(tokens, experts, top_k, skew)
    limit = capacity(tokens * top_k, experts, capacity_factor)
    return ExpertLoad(load, top_k, limit, ranks, row_bytes)


def balance_loss(load: Sequence[NotNegative], probabilities: Sequence[NotNegative]) -> float:
    """Balancing loss N Σ f_i P_i: f_i is expert i's share of choices, P_i its mean probability.

    It is 1 for a uniform load, which is not the minimum, and at most N / top_k, if all tokens
    choose the same top_k experts. Source: Fedus et al. 2021, arXiv:2101.03961, equation 4, without
    its factor α. Raises ValueError for unequal lengths, numbers below 0, and a load of 0.
    """
    whole("experts", len(load), most=_MOST_EXPERTS)
    if len(load) != len(probabilities):
        raise ValueError(
            f"load has {len(load)} experts and probabilities {len(probabilities)}: give one "
            "number for each expert in both"
        )
    number("sum of load", sum(load), above=0)
    pairs = zip(load, probabilities, strict=True)
    return len(load) * sum(one * other for one, other in pairs) / sum(load)


def experts_per_rank(counts: Sequence[Sequence[CountOrZero]]) -> int:
    """Experts per rank, experts / ranks, for a valid table `counts[rank][expert]`.

    Raises ValueError for rows of different lengths, counts below 0, and a number of experts that
    the ranks do not divide.
    """
    whole("ranks", len(counts))
    experts = len(counts[0])
    whole("experts", experts, most=_MOST_EXPERTS)
    divisible("experts", experts, "ranks", len(counts))
    for rank, row in enumerate(counts):
        if len(row) != experts:
            raise ValueError(
                f"counts[{rank}] has {len(row)} experts and counts[0] {experts}: give one number "
                "for each expert"
            )
    return experts // len(counts)


def routed_bytes(
    counts: Sequence[Sequence[int]], rank: int, row_bytes: Count, passes: Count = 2
) -> int:
    """Bytes of `rank`'s inputs to one layer's all-to-alls in one step.

    `counts[r][e]`: accepted choices of rank r for expert e; experts are placed on ranks in order.
    Dispatch sends the rank's own rows, combine returns the rows that it received; `passes` is 2
    for forward and backward, 3 with recomputation: passes · (sent + received) · row_bytes. Rows
    that stay on the rank are included. Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3.
    """
    per_rank = experts_per_rank(counts)
    whole("rank", rank, least=0, most=len(counts) - 1)
    received = sum(sum(row[rank * per_rank : (rank + 1) * per_rank]) for row in counts)
    return passes * (sum(counts[rank]) + received) * row_bytes


check_public(globals())
