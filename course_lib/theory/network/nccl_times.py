"""What NCCL expects of an all-reduce on one server of eight H100, and which way it chooses.

For each call NCCL estimates latency + size / bandwidth for every algorithm and protocol, and takes
the fastest. Constants and formulas are those of NCCL 2.30.7 (github.com/NVIDIA/nccl at 5067397,
src/graph/tuning.cc). The channels are those that it finds on such a server: twelve of 30 GB/s for
rings and trees; for NVLS, where the switches add, eight of 40 GB/s (issue 1197 of NVIDIA/nccl).
"""

from dataclasses import dataclass

from course_lib.validation import number

RANKS = 8
_STEPS = 2 * (RANKS - 1)
_RING_BUS = 12 * 30e9
_TREE_BUS = 0.92 * _RING_BUS
_LL_MOST = 141e9
# Each channel reaches 85 %, one of the eight is not counted, and sum and copy run at a time.
_NVLS_BUS = 8 * 40e9 * 0.85 * 7 / 8 * 2
# By protocol: µs before the first step, µs for a step, bus bandwidth.
_RING = {
    "LL": (6.6, 0.6, min(_LL_MOST, _RING_BUS / 2)),
    "LL128": (14.0, 1.9, 0.92 * _RING_BUS),
    "Simple": (8.4, 3.4, _RING_BUS),
}
_TREE = {
    "LL": (6.8, 0.6, min(_LL_MOST, _TREE_BUS / 3.8)),
    "LL128": (14.0, 1.25, _TREE_BUS * 7 / 9),
    "Simple": (8.4, 4.0, _TREE_BUS),
}


@dataclass(frozen=True)
class NcclWay:
    """An algorithm with a protocol: `latency_s` in all, and `bytes_per_s` of the tensor (algbw)."""

    algorithm: str
    protocol: str
    latency_s: float
    bytes_per_s: float

    @property
    def name(self) -> str:
        """As in "Ring, LL"."""
        return f"{self.algorithm}, {self.protocol}"

    def seconds(self, size_bytes: float) -> float:
        """The time that NCCL expects: latency + size / bandwidth. Raises ValueError below 0."""
        number("size_bytes", size_bytes, least=0)
        return self.latency_s + size_bytes / self.bytes_per_s


def nccl_ways() -> tuple[NcclWay, ...]:
    """All that NCCL compares: ring and tree with three protocols each, and NVLS.

    Within a server a tree is a chain, so it has as many steps as the ring; and half of its bus
    bandwidth is the tensor's. NCCL lowers the bandwidth of trees further at middle sizes, which is
    left out: no tree is the fastest even so.
    """
    rings = [
        NcclWay("Ring", protocol, (base + _STEPS * step) * 1e-6, bus * RANKS / _STEPS)
        for protocol, (base, step, bus) in _RING.items()
    ]
    trees = [
        NcclWay("Tree", protocol, (base + _STEPS * step) * 1e-6, bus / 2)
        for protocol, (base, step, bus) in _TREE.items()
    ]
    return (*rings, *trees, NcclWay("NVLS", "Simple", 25e-6, _NVLS_BUS * RANKS / _STEPS))


def nccl_choice(size_bytes: float) -> NcclWay:
    """The way with the least time for this size. Raises ValueError for a size below 0."""
    return min(nccl_ways(), key=lambda way: way.seconds(size_bytes))
