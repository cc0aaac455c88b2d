"""The cost of one slow rank, one slow link, or a slow network: every rank waits for the slowest."""

import math
from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.validation import fraction, number, whole

_LEAST, _MOST, _POINTS = -8.0, 12.0, 1000  # integration range in standard deviations, and points


def straggler_factor(slower: float, compute_share: float = 1.0) -> float:
    """Step time with one slow rank over that of a healthy step: 1 + slower · compute share.

    It holds for any number of ranks, since all wait for the slowest. `slower` 0.1 is 10 % more
    time; `compute_share` is the fraction of a healthy step that is slowed down on that rank.
    Raises ValueError for `slower` below 0, or a share that is not in (0, 1].
    """
    number("slower", slower, least=0)
    fraction("compute_share", compute_share)
    return 1 + slower * compute_share


def shared_work_factor(ranks: int, slower: float) -> float:
    """Step time factor if work were balanced by speed: n / (n - 1 + 1 / (1 + slower)).

    A hypothetical bound: all ranks together lose only what the slow one cannot do.
    """
    whole("ranks", ranks, most=10**9)
    number("slower", slower, least=0)
    return ranks / (ranks - 1 + 1 / (1 + slower))


def expected_slowest_s(ranks: int, mean_s: float, deviation_s: float) -> float:
    """Expected maximum, in seconds, of `ranks` independent normal times.

    mean + deviation · E[max of n standard normal], with E[max] the integral over x of
    1 - P(all below x) above 0, less that of P(all below x) below 0: 0.56 for 2 ranks, 1.42 for 8,
    2.34 for 64, 3.25 for 1,024. Source: David and Nagaraja 2003, "Order Statistics", section 3.1.
    Raises ValueError if the mean is less than 3 deviations above 0: such times are not normal.
    """
    whole("ranks", ranks, most=10**9)
    number("mean_s", mean_s, least=0)
    number("deviation_s", deviation_s, least=0)
    if 3 * deviation_s > mean_s:
        raise ValueError(
            f"deviation_s {deviation_s} is more than a third of mean_s {mean_s}: such times are "
            "not normal, give a smaller deviation"
        )
    return mean_s + deviation_s * _expected_maximum(ranks)


def _expected_maximum(ranks: int) -> float:
    """Expected maximum of `ranks` standard normal values: upper end - ∫ P(all below x) dx."""
    if ranks == 1:
        return 0.0
    step = (_MOST - _LEAST) / _POINTS
    below = sum(
        math.exp(ranks * math.log1p(-math.erfc((_LEAST + point * step) / math.sqrt(2)) / 2))
        for point in range(1, _POINTS)
    )
    return _MOST - step * (below + 0.5)  # P is 0 at the lower end, and 1 at the upper


@checked
@dataclass(frozen=True)
class OneSlowLink:
    """An all-reduce of `size_bytes` over `rings` rings, one of which has a slow link.

    Each ring passes through all ranks and has its own network port in each node, a `link`; it
    carries 1 / rings of the bytes, whatever its speed (an assumption of this model). In a ring
    every piece passes over every link, so the slowest link limits its ring, and the slowest ring
    limits all ranks. Source of the ring: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations".
    """

    size_bytes: float
    ranks: int
    link: Link
    slow_bytes_per_s: float
    rings: int = 1

    def __post_init__(self) -> None:
        number("size_bytes", self.size_bytes, above=0)
        whole("ranks", self.ranks, least=2, most=10**9)
        number("slow_bytes_per_s", self.slow_bytes_per_s, above=0)
        whole("rings", self.rings, most=10**6)

    @property
    def healthy_s(self) -> float:
        """Seconds with equal links: 2(n-1) · latency + 2(n-1)/n · size / (rings · bandwidth)."""
        return self._seconds(self.rings * self.link.bytes_per_s)

    @property
    def slow_s(self) -> float:
        """Seconds with the slow link, whose ring carries 1 / rings of the size at its rate."""
        slowest = min(self.slow_bytes_per_s, self.link.bytes_per_s)
        return self._seconds(self.rings * slowest)

    @property
    def factor(self) -> float:
        """Time of the all-reduce with the slow link over the healthy time, on every rank."""
        return self.slow_s / self.healthy_s

    @property
    def without_s(self) -> float | None:
        """Seconds without the slow ring, whose bytes the others share; None if it is the only one.

        The effect of excluding the slow port by NCCL_IB_HCA on every node.
        """
        if self.rings == 1:
            return None
        return self._seconds((self.rings - 1) * self.link.bytes_per_s)

    @property
    def healthy_bus_bytes_per_s(self) -> float:
        """The bus bandwidth that nccl-tests would print with equal links."""
        return collectives.bus_bandwidth("all-reduce", self.size_bytes, self.ranks, self.healthy_s)

    @property
    def slow_bus_bytes_per_s(self) -> float:
        """The bus bandwidth that nccl-tests prints: that of the slow link times `rings`."""
        return collectives.bus_bandwidth("all-reduce", self.size_bytes, self.ranks, self.slow_s)

    def _seconds(self, bytes_per_s: float) -> float:
        together = Link("all rings", bytes_per_s, self.link.latency_s)
        return collectives.seconds("all-reduce", self.size_bytes, self.ranks, together)


@dataclass(frozen=True)
class MoreNodes:
    """An update on one node compared with two nodes, both healthy and equal.

    `compute_s`: computing time of one node for its batch; `exchange_s`: time of the exchange
    between the nodes that is not overlapped. Under strong scaling (`same_batch`) the nodes split
    the batch, under weak scaling each has a batch of that size. Sources: Amdahl 1967, "Validity of
    the single processor approach", and Gustafson 1988, "Reevaluating Amdahl's law".
    """

    compute_s: float
    exchange_s: float
    same_batch: bool = True

    def __post_init__(self) -> None:
        number("compute_s", self.compute_s, above=0)
        number("exchange_s", self.exchange_s, least=0)

    @property
    def many_s(self) -> float:
        """Seconds on two nodes: compute / 2 (strong scaling) or compute (weak), plus exchange."""
        return self.compute_s / (2 if self.same_batch else 1) + self.exchange_s

    @property
    def speedup(self) -> float:
        """Samples per second on two nodes over those on one: 1 is break-even, 2 ideal."""
        return (1 if self.same_batch else 2) * self.compute_s / self.many_s

    @property
    def break_even_batches(self) -> float:
        """Factor by which the batch must grow until two nodes are as fast as one.

        A larger batch or accumulation makes computing longer, but not the exchange.
        Strong scaling: 2 · exchange / compute; weak scaling: half of that.
        """
        return (2 if self.same_batch else 1) * self.exchange_s / self.compute_s
