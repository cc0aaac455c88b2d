"""How a router loads experts and ranks: what is accepted, what is dropped, what travels."""

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
    """Choices that fall on each expert, and the capacity that each expert has.

    A token makes `top_k` choices. Experts are spread over `ranks` in order, equally many on each;
    `row_bytes` is what one token takes on its way.
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
        """tokens · top_k."""
        return sum(self.load)

    @property
    def mean(self) -> float:
        """Choices per expert: choices / experts."""
        return self.choices / len(self.load)

    @property
    def imbalance(self) -> float:
        """The busiest expert's load over the mean; 1 when all are equal."""
        return max(self.load) / self.mean

    @property
    def accepted(self) -> tuple[int, ...]:
        """What each expert takes: min(load, capacity)."""
        return tuple(min(choices, self.capacity) for choices in self.load)

    @property
    def dropped(self) -> int:
        """Choices beyond the capacity of their expert."""
        return self.choices - sum(self.accepted)

    @property
    def dropped_fraction(self) -> float:
        """dropped / choices."""
        return self.dropped / self.choices

    @property
    def rank_load(self) -> tuple[int, ...]:
        """Accepted choices by rank: the rows that each rank receives."""
        own, accepted = len(self.load) // self.ranks, self.accepted
        starts = range(0, len(self.load), own)
        return tuple(sum(accepted[start : start + own]) for start in starts)

    @property
    def rank_imbalance(self) -> float:
        """The busiest rank's rows over the mean: the others wait for it."""
        return max(self.rank_load) * self.ranks / sum(self.rank_load)

    @property
    def dispatch_bytes(self) -> float:
        """One all-to-all as a rank hands it over: accepted choices · row_bytes / ranks.

        The tokens lie equally on all ranks. Rows that stay on their rank are counted.
        """
        return sum(self.accepted) * self.row_bytes / self.ranks

    @property
    def travelling_bytes(self) -> float:
        """What of it leaves the rank when all experts are asked alike: (n-1)/n."""
        return self.dispatch_bytes * bus_factor("all-to-all", self.ranks)

    @property
    def received_bytes(self) -> int:
        """What the busiest rank receives in one dispatch."""
        return max(self.rank_load) * self.row_bytes


def capacity(
    choices: Annotated[int, partial(whole, most=_MOST_TOKENS * _MOST_EXPERTS)],
    experts: _Experts,
    factor: Annotated[float, partial(number, above=0, most=_MOST_EXPERTS)] | None,
) -> int:
    """Choices that one expert takes: factor · choices / experts, rounded up; all where None.

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
    """Nodes on which a token's experts lie, on average, if any `top_k` experts are as likely.

    nodes · (1 − the chance that none of them lies on one node). Raises ValueError for more nodes or
    choices than experts.
    """
    _choices(top_k, experts)
    whole("nodes", nodes, most=experts)
    elsewhere = experts - -(-experts // nodes)
    return nodes * (1 - comb(elsewhere, top_k) / comb(experts, top_k))


def routed_intensity(width: Count, *, matrices: Count = 3, element_bytes: Count = 2) -> float:
    """FLOP of the experts for each byte that their tokens are sent, forward and backward.

    A row of h numbers travels four times, there and back, and its gradient too; meanwhile its
    expert of `matrices` · h · width weights does 6 FLOP with each of them:
    6·matrices·h·width / (4·h·bytes), so h cancels, and so do the tokens. Bytes are counted with
    the part that stays on the rank. Source: from Lepikhin et al. 2020, arXiv:2006.16668, section 3.
    """
    return 1.5 * matrices * width / element_bytes


def zipf_load(
    tokens: Annotated[int, partial(whole, most=_MOST_TOKENS)],
    experts: _Experts,
    top_k: Count,
    skew: Annotated[float, partial(number, least=0, most=10)],
) -> tuple[int, ...]:
    """Expected load when expert i is liked in proportion to 1 / i^skew, i = 1, 2, …

    A token chooses `top_k` different experts, so none gets more than `tokens`; what is above that
    goes to the others in proportion. Rounded to whole choices that add up to tokens · top_k
    (largest remainders first). Skew 0: all alike.
    """
    _choices(top_k, experts)
    exact = [tokens * share for share in _shares(experts, top_k, skew)]
    load = [int(choices) for choices in exact]
    remainders = sorted(range(experts), key=lambda expert: load[expert] - exact[expert])
    for expert in remainders[: tokens * top_k - sum(load)]:
        load[expert] += 1
    return tuple(load)


def _shares(experts: int, top_k: int, skew: float) -> list[float]:
    """How many of all tokens choose each expert: at most 1, in all top_k; falling."""
    weights = [(place + 1) ** -skew for place in range(experts)]
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
    """The load of `zipf_load` with the capacity of `capacity`."""
    load = zipf_load(tokens, experts, top_k, skew)
    limit = capacity(tokens * top_k, experts, capacity_factor)
    return ExpertLoad(load, top_k, limit, ranks, row_bytes)


def balance_loss(load: Sequence[NotNegative], probabilities: Sequence[NotNegative]) -> float:
    """N Σ f_i P_i: f_i the share of all choices on expert i, P_i its mean probability.

    1 when all N experts are chosen alike, which is not the least; at most N / top_k, when the same
    top_k get everything. Source: Fedus et al. 2021, arXiv:2101.03961, equation 4, without its
    factor α. Raises ValueError for unequal lengths, numbers below 0, and a load of 0.
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
    """experts / ranks, if `counts[rank][expert]` is a table of counts for evenly placed experts.

    Raises ValueError for rows of different length, counts below 0, and experts that do not divide
    by the ranks.
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
    """Bytes that `rank` hands over to one layer's all-to-alls in one step.

    `counts[r][e]`: accepted choices of rank r for expert e; the experts lie on the ranks in order.
    Dispatch hands over the rows that the rank sends, combine those that it received; `passes` is 2
    for forward and backward, 3 with recomputation: passes · (sent + received) · row_bytes. Rows
    that stay are counted. Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3.
    """
    own = experts_per_rank(counts)
    whole("rank", rank, least=0, most=len(counts) - 1)
    received = sum(sum(row[rank * own : (rank + 1) * own]) for row in counts)
    return passes * (sum(counts[rank]) + received) * row_bytes


check_public(globals())
