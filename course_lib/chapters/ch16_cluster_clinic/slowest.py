"""One that is slow: a rank, a link, a network of many nodes; every rank waits for it."""

import math
from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.validation import fraction, number, whole

_LEAST, _MOST, _POINTS = -8.0, 12.0, 1000  # of deviations; beyond, a normal value is not met


def straggler_factor(slower: float, compute_share: float = 1.0) -> float:
    """Time of a step over that of a healthy one, with one rank `slower` by this part in computing.

    1 + slower · compute share: with any number of ranks, since all wait for the slowest. `slower`
    0.1 is 10 % more time; `compute_share` is the part of a healthy step that the slow rank spends
    in what is slow. Raises ValueError for a part below 0, or a share that is not in (0, 1].
    """
    number("slower", slower, least=0)
    fraction("compute_share", compute_share)
    return 1 + slower * compute_share


def shared_work_factor(ranks: int, slower: float) -> float:
    """The same if work could be divided by speed, as it is not: n / (n - 1 + 1 / (1 + slower)).

    All ranks together then lose only what the slow one cannot do.
    """
    whole("ranks", ranks, most=10**9)
    number("slower", slower, least=0)
    return ranks / (ranks - 1 + 1 / (1 + slower))


def expected_slowest_s(ranks: int, mean_s: float, deviation_s: float) -> float:
    """Mean of the longest of `ranks` times that are normal and independent.

    mean + deviation · E[max of n standard normal], with E[max] the integral over x of
    1 - P(all below x) above 0, less that of P(all below x) below 0: 0.56 for 2 ranks, 1.42 for 8,
    2.34 for 64, 3.25 for 1,024. Source: David and Nagaraja 2003, "Order Statistics", section 3.1.
    Raises ValueError where a time of 0 is nearer to the mean than 3 deviations: then it is not
    normal.
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
    """Of so many standard normal values: upper end - integral of P(all below x)."""
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
    """An all-reduce of `size_bytes` over `rings` rings, of which one has a link of another rate.

    Each ring passes through all ranks and has a network port of its own in each node, one `link`;
    it carries 1 / rings of the bytes, whatever its speed (an assumption of this model). In a ring
    every piece passes over every link, so the slowest link sets the pace of the ring, and the
    slowest ring that of all ranks. Source of the ring: Patarasuk and Yuan 2009, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations".
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
        """All links alike: 2(n-1) · latency + 2(n-1)/n · size / (rings · bandwidth)."""
        return self._seconds(self.rings * self.link.bytes_per_s)

    @property
    def slow_s(self) -> float:
        """With the slow link: its ring carries 1 / rings of the size at that link's rate."""
        slowest = min(self.slow_bytes_per_s, self.link.bytes_per_s)
        return self._seconds(self.rings * slowest)

    @property
    def factor(self) -> float:
        """How much longer the all-reduce takes, on every rank."""
        return self.slow_s / self.healthy_s

    @property
    def without_s(self) -> float | None:
        """Without the slow ring: the others share its bytes; None where there is no other.

        What NCCL_IB_HCA does where it leaves out the slow port, on every node alike.
        """
        if self.rings == 1:
            return None
        return self._seconds((self.rings - 1) * self.link.bytes_per_s)

    @property
    def healthy_bus_bytes_per_s(self) -> float:
        """The bus bandwidth that nccl-tests would print with all links alike."""
        return collectives.bus_bandwidth("all-reduce", self.size_bytes, self.ranks, self.healthy_s)

    @property
    def slow_bus_bytes_per_s(self) -> float:
        """The bus bandwidth that nccl-tests prints now: that of the slow link, times the rings."""
        return collectives.bus_bandwidth("all-reduce", self.size_bytes, self.ranks, self.slow_s)

    def _seconds(self, bytes_per_s: float) -> float:
        together = Link("all rings", bytes_per_s, self.link.latency_s)
        return collectives.seconds("all-reduce", self.size_bytes, self.ranks, together)


@dataclass(frozen=True)
class MoreNodes:
    """An update on one node, and on two of them, both healthy and alike.

    `compute_s`: what one node computes for an update of its own batch; `exchange_s`: what shows of
    the exchange between them. Under strong scaling (`same_batch`) the nodes divide that batch,
    under weak scaling each has as much of its own. Amdahl 1967, "Validity of the single processor
    approach", for the first, and Gustafson 1988, "Reevaluating Amdahl's law", for the second.
    """

    compute_s: float
    exchange_s: float
    same_batch: bool = True

    def __post_init__(self) -> None:
        number("compute_s", self.compute_s, above=0)
        number("exchange_s", self.exchange_s, least=0)

    @property
    def many_s(self) -> float:
        """An update on both: compute / 2 under strong scaling, compute under weak; the exchange."""
        return self.compute_s / (2 if self.same_batch else 1) + self.exchange_s

    @property
    def speedup(self) -> float:
        """Samples per second on both nodes over those on one: 1 is break-even, 2 the best."""
        return (1 if self.same_batch else 2) * self.compute_s / self.many_s

    @property
    def break_even_batches(self) -> float:
        """How many times its batch one node needs in an update, until two are faster.

        By a larger batch, or by accumulation: computing grows with it, the exchange does not.
        Strong: 2 · exchange / compute; weak: half of that.
        """
        return (2 if self.same_batch else 1) * self.exchange_s / self.compute_s
