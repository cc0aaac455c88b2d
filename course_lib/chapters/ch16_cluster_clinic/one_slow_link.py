"""Rings of which one has a slow link: every rank waits for it."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.validation import number, whole


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
