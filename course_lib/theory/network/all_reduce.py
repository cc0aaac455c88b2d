"""All-reduce algorithms: bytes per pair of ranks, the faster one on a link, and NCCL's choice."""

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Annotated

from course_lib.checked import NotNegative, check_public
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.validation import whole

# --- Bytes sent between each pair of ranks in an all-reduce, for four algorithms ---

SWITCH = -1  # used as a rank: a switch that adds

_MOST_RANKS = 64


@dataclass(frozen=True)
class Way:
    """An all-reduce algorithm: `sent[sender, receiver]`, in units of the whole tensor."""

    ranks: int
    sent: dict[tuple[int, int], float]

    @property
    def most(self) -> float:
        """The amount that the busiest rank sends."""
        return max(self.sent_by(rank) for rank in range(self.ranks))

    @property
    def busiest(self) -> tuple[int, ...]:
        """The ranks that send the most."""
        return tuple(r for r in range(self.ranks) if self.sent_by(r) > self.most - 1e-9)

    def sent_by(self, rank: int) -> float:
        """The amount that `rank` sends to all other ranks and to the switch."""
        whole("rank", rank, least=0, most=self.ranks - 1)
        return sum(amount for (sender, _), amount in self.sent.items() if sender == rank)


def all_reduce_ways(
    ranks: Annotated[int, partial(whole, least=2, most=_MOST_RANKS)],
) -> dict[str, Way]:
    """The algorithms "one rank adds", "tree", "ring" and "a switch adds", by name.

    One rank adds: all send to rank 0, which sends the sum to all. A switch adds: each rank sends
    its tensor, then the sum of one n-th of it, which the switch copies to all: (n+1)/n. Raises
    ValueError for fewer than 2 or more than 64 ranks. Sources: those of `ring_steps` and
    `tree_steps`; for the switch github.com/NVIDIA/nccl-tests, issue 212.
    """
    star = {pair: 1.0 for rank in range(1, ranks) for pair in ((rank, 0), (0, rank))}
    # A rank's parent in the binomial tree: its number with the lowest set bit cleared.
    edges = [(rank, rank & rank - 1) for rank in range(1, ranks)]
    tree = {pair: 1.0 for a, b in edges for pair in ((a, b), (b, a))}
    up = {(rank, SWITCH): (ranks + 1) / ranks for rank in range(ranks)}
    down = {(SWITCH, rank): (ranks + 1) / ranks for rank in range(ranks)}
    return {
        "one rank adds": Way(ranks, star),
        "tree": Way(ranks, tree),
        "ring": Way(ranks, {(rank, (rank + 1) % ranks): 2 - 2 / ranks for rank in range(ranks)}),
        "a switch adds": Way(ranks, up | down),
    }


# --- Ring or tree on one link: the faster one, and the size at which they cross over ---


@dataclass(frozen=True)
class RingOrTree:
    """The time of one collective in the α–β model, on a ring and on a tree.

    `tree_s` and `crossover_bytes` are None for an operation without a tree algorithm. Below the
    crossover the tree is faster; 0 means never, infinity means always.
    """

    operation: str
    size_bytes: float
    ranks: int
    link: Link
    tree: str
    ring_s: float
    tree_s: float | None
    crossover_bytes: float | None

    @property
    def ring_steps(self) -> int:
        """Sequential messages on the ring."""
        return collectives.steps(self.operation, self.ranks)

    @property
    def tree_steps(self) -> int | None:
        """Sequential messages on the tree; None without a tree algorithm."""
        if self.tree_s is None:
            return None
        return collectives.steps(self.operation, self.ranks, self.tree)

    @property
    def ring_latency_s(self) -> float:
        """Latency part of the ring's time: steps · α."""
        return self.ring_steps * self.link.latency_s

    @property
    def half_bytes(self) -> float:
        """Size at which half of the ring's time is latency: steps · α · β / bus factor."""
        factor = collectives.bus_factor(self.operation, self.ranks)
        return self.ring_latency_s * self.link.bytes_per_s / factor if factor else inf

    @property
    def faster(self) -> str:
        """The faster algorithm, "ring" or "tree"; the ring if both take the same time."""
        return "tree" if self.tree_s is not None and self.tree_s < self.ring_s else "ring"

    @property
    def seconds(self) -> float:
        """Seconds of the faster algorithm."""
        return self.ring_s if self.tree_s is None else min(self.ring_s, self.tree_s)

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth of the ring in bytes per second, comparable to the link's bandwidth."""
        if self.ring_s == 0:
            return 0.0
        return collectives.bus_bandwidth(self.operation, self.size_bytes, self.ranks, self.ring_s)


def ring_or_tree(
    operation: str,
    size_bytes: float,
    ranks: int,
    link: Link,
    *,
    tree: Annotated[str, collectives.TREES] = "tree",
) -> RingOrTree:
    """Compare ring and tree for one collective on `ranks` GPUs that have a `link` each.

    `tree` "tree" sends the whole tensor level by level; "double-tree" pipelines pieces through two
    trees at TREE_EFFICIENCY of the bandwidth. At the crossover both times are equal.
    Source: Thakur, Rabenseifner, Gropp 2005, section 4.
    """
    ring_s = collectives.seconds(operation, size_bytes, ranks, link)
    if operation not in collectives.ALGORITHMS[tree].operations:
        return RingOrTree(operation, size_bytes, ranks, link, tree, ring_s, None, None)
    slower = replace(link, bytes_per_s=link.bytes_per_s * collectives.ALGORITHMS[tree].share)
    tree_s = collectives.seconds(operation, size_bytes, ranks, slower, algorithm=tree)
    crossover = collectives.crossover_bytes(operation, ranks, link, tree=tree)
    return RingOrTree(operation, size_bytes, ranks, link, tree, ring_s, tree_s, crossover)


# --- NCCL's estimates for an all-reduce on one server of eight H100, and its choice ---

# For each call NCCL estimates latency + size / bandwidth for every algorithm and protocol, and
# takes the fastest. Constants and formulas are those of NCCL 2.30.7 (github.com/NVIDIA/nccl at
# 5067397, src/graph/tuning.cc). The channels are those that it detects on such a server: twelve of
# 30 GB/s for rings and trees; for NVLS, where the switches add, eight of 40 GB/s (issue 1197 of
# NVIDIA/nccl).

RANKS = 8
_STEPS = 2 * (RANKS - 1)
_RING_BUS = 12 * 30e9
_TREE_BUS = 0.92 * _RING_BUS
_LL_MOST = 141e9
# A channel reaches 85 %, one of the eight is not counted, and sum and copy run concurrently.
_NVLS_BUS = 8 * 40e9 * 0.85 * 7 / 8 * 2
# By protocol: µs before the first step, µs per step, bus bandwidth in bytes/s.
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
    """An algorithm and protocol: total `latency_s`, and algorithm bandwidth `bytes_per_s`."""

    algorithm: str
    protocol: str
    latency_s: float
    bytes_per_s: float

    @property
    def name(self) -> str:
        """Display name such as "Ring, LL"."""
        return f"{self.algorithm}, {self.protocol}"

    def seconds(self, size_bytes: NotNegative) -> float:
        """NCCL's estimate of the time: latency + size / bandwidth."""
        return self.latency_s + size_bytes / self.bytes_per_s


def nccl_ways() -> tuple[NcclWay, ...]:
    """The options that NCCL compares: ring and tree with three protocols each, and NVLS.

    Within a server a tree is a chain, so it has as many steps as the ring, and its algorithm
    bandwidth is half of its bus bandwidth. NCCL's further reduction of tree bandwidth at medium
    sizes is left out: trees are never the fastest even without it.
    """
    algorithms = (("Ring", _RING, RANKS / _STEPS), ("Tree", _TREE, 1 / 2))
    ways = [
        NcclWay(algorithm, protocol, (base + _STEPS * step) * 1e-6, bus * part)
        for algorithm, protocols, part in algorithms
        for protocol, (base, step, bus) in protocols.items()
    ]
    return (*ways, NcclWay("NVLS", "Simple", 25e-6, _NVLS_BUS * RANKS / _STEPS))


def nccl_choice(size_bytes: float) -> NcclWay:
    """The option with the shortest estimated time for this size."""
    return min(nccl_ways(), key=lambda way: way.seconds(size_bytes))


check_public(globals())
