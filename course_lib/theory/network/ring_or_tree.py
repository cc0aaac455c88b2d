"""A collective by ring and by tree on one link: which is faster, and from which size on."""

from dataclasses import dataclass, replace
from math import inf

from course_lib.checked import checked
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.inputs.units import format_bytes, format_seconds
from course_lib.theory.network import collectives
from course_lib.validation import choice


@dataclass(frozen=True)
class RingOrTree:
    """The time of one collective by the α–β model, on a ring and on a tree.

    `tree_s` and `crossover_bytes` are None for an operation without a tree. Below the crossover
    the tree is faster; 0: it never is, infinite: it always is.
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
        """Messages that follow each other on the ring."""
        return collectives.steps(self.operation, self.ranks)

    @property
    def tree_steps(self) -> int | None:
        """Messages that follow each other on the tree."""
        if self.tree_s is None:
            return None
        return collectives.steps(self.operation, self.ranks, self.tree)

    @property
    def ring_latency_s(self) -> float:
        """The part of the ring's time that no bandwidth shortens: steps · α."""
        return self.ring_steps * self.link.latency_s

    @property
    def half_bytes(self) -> float:
        """Size at which the ring spends half of its time on latency: steps · α · β / factor."""
        factor = collectives.bus_factor(self.operation, self.ranks)
        return self.ring_latency_s * self.link.bytes_per_s / factor if factor else inf

    @property
    def faster(self) -> str:
        """ "ring" or "tree"; the ring where both take the same time."""
        return "tree" if self.tree_s is not None and self.tree_s < self.ring_s else "ring"

    @property
    def seconds(self) -> float:
        """The time of the faster one."""
        return self.ring_s if self.tree_s is None else min(self.ring_s, self.tree_s)

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth of the ring, to compare with the link's."""
        if self.ring_s == 0:
            return 0.0
        return collectives.bus_bandwidth(self.operation, self.size_bytes, self.ranks, self.ring_s)

    def explain(self) -> str:
        """The ring's two terms, the tree's time, and the crossover."""
        size = format_bytes(self.size_bytes, "GiB")
        sent_s = self.ring_s - self.ring_latency_s
        lines = [
            f"{self.operation} of {size} on {self.ranks} ranks, {self.link.explain()}",
            f"ring: {self.ring_steps} steps · α = {format_seconds(self.ring_latency_s)}, "
            f"bytes / β = {format_seconds(sent_s)}, together {format_seconds(self.ring_s)}",
        ]
        if self.tree_s is not None and self.crossover_bytes is not None:
            below = format_bytes(self.crossover_bytes, "GiB")
            lines.append(
                f"{self.tree}: {self.tree_steps} steps, together {format_seconds(self.tree_s)}; "
                f"faster below {below}"
            )
        return "\n".join(lines)


@checked
def ring_or_tree(
    operation: str, size_bytes: float, ranks: int, link: Link, *, tree: str = "tree"
) -> RingOrTree:
    """One collective on `ranks` GPUs that have a `link` each, by ring and by tree.

    `tree` "tree" sends the whole tensor level by level, "double-tree" in pieces through two trees
    and reaches TREE_EFFICIENCY of the bandwidth. The crossover is where the times are equal.
    Source: Thakur, Rabenseifner, Gropp 2005, section 4. Raises ValueError for a size below 0 and
    fewer than 1 rank.
    """
    choice("tree", tree, collectives.TREES)
    ring_s = collectives.seconds(operation, size_bytes, ranks, link)
    if operation not in collectives.ALGORITHMS[tree].operations:
        return RingOrTree(operation, size_bytes, ranks, link, tree, ring_s, None, None)
    slower = replace(link, bytes_per_s=link.bytes_per_s * collectives.ALGORITHMS[tree].share)
    tree_s = collectives.seconds(operation, size_bytes, ranks, slower, algorithm=tree)
    crossover = collectives.crossover_bytes(operation, ranks, link, tree=tree)
    return RingOrTree(operation, size_bytes, ranks, link, tree, ring_s, tree_s, crossover)
