"""Who sends how much to whom in an all-reduce, for four ways of doing it."""

from dataclasses import dataclass

from course_lib.validation import whole

SWITCH = -1  # stands where another rank's number would: a switch that adds

_MOST_RANKS = 64


@dataclass(frozen=True)
class Way:
    """`sent[sender, receiver]` is what goes from one to the other, in units of the whole tensor."""

    ranks: int
    sent: dict[tuple[int, int], float]

    @property
    def most(self) -> float:
        """What the busiest rank sends."""
        return max(self.sent_by(rank) for rank in range(self.ranks))

    @property
    def busiest(self) -> tuple[int, ...]:
        """The ranks that send as much as no other does."""
        return tuple(r for r in range(self.ranks) if self.sent_by(r) > self.most - 1e-9)

    def sent_by(self, rank: int) -> float:
        """What one rank sends to all others and to the switch."""
        whole("rank", rank, least=0, most=self.ranks - 1)
        return sum(amount for (sender, _), amount in self.sent.items() if sender == rank)


def all_reduce_ways(ranks: int) -> dict[str, Way]:
    """By "one rank adds", "tree", "ring" and "a switch adds".

    One rank adds: all send to rank 0, which sends the sum to all. A switch: each rank sends its
    tensor and, of its own n-th, the sum, which the switch copies to all: (n+1)/n. Raises
    ValueError for fewer than 2 or more than 64 ranks. Sources: those of `ring_steps` and
    `tree_steps`; for the switch github.com/NVIDIA/nccl-tests, issue 212.
    """
    whole("ranks", ranks, least=2, most=_MOST_RANKS)
    star = {pair: 1.0 for rank in range(1, ranks) for pair in ((rank, 0), (0, rank))}
    # A rank's parent in the binomial tree: without its lowest bit.
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
