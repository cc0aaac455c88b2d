"""When more nodes are slower than one: what is computed is divided, what is exchanged is added."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.validation import flag, number, whole


@checked
@dataclass(frozen=True)
class MoreNodes:
    """An update on one node, and on `nodes` of them, all healthy and alike.

    `compute_s`: what one node computes for an update of its own batch; `exchange_s` and
    `exchange_one_s`: what shows of the exchange, on all nodes and within one. Under strong scaling
    (`same_batch`) the nodes divide that batch, under weak scaling each has as much of its own.
    Amdahl 1967, "Validity of the single processor approach", for the first, and Gustafson 1988,
    "Reevaluating Amdahl's law", for the second.
    """

    compute_s: float
    exchange_s: float
    exchange_one_s: float = 0.0
    nodes: int = 2
    same_batch: bool = True

    def __post_init__(self) -> None:
        number("compute_s", self.compute_s, above=0)
        number("exchange_s", self.exchange_s, least=0)
        number("exchange_one_s", self.exchange_one_s, least=0)
        whole("nodes", self.nodes, least=2, most=10**6)
        flag("same_batch", self.same_batch)

    @property
    def one_s(self) -> float:
        """An update on one node: compute + its exchange."""
        return self.compute_s + self.exchange_one_s

    @property
    def many_s(self) -> float:
        """An update on all nodes: compute / nodes under strong scaling, compute under weak."""
        return self.compute_s / (self.nodes if self.same_batch else 1) + self.exchange_s

    @property
    def speedup(self) -> float:
        """Samples per second on all nodes over those on one: 1 is break-even, `nodes` the best."""
        work = 1 if self.same_batch else self.nodes
        return work * self.one_s / self.many_s

    @property
    def break_even_compute_s(self) -> float:
        """The computing of one node in an update from which more nodes are faster.

        Strong: n/(n-1) · (exchange - exchange in one). Weak: (exchange - n · exchange in one) /
        (n-1). 0 where they always are.
        """
        n = self.nodes
        if self.same_batch:
            return max(0.0, (self.exchange_s - self.exchange_one_s) * n / (n - 1))
        return max(0.0, (self.exchange_s - n * self.exchange_one_s) / (n - 1))

    @property
    def break_even_batches(self) -> float:
        """How many times its batch one node needs in an update, until more nodes are faster.

        By a larger batch, or by accumulation: computing grows with it, the exchange does not.
        """
        return self.break_even_compute_s / self.compute_s
