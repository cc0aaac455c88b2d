"""Tokens on their way to experts and back: what each rank sends to each other rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.network.experts import capacity, experts_per_rank, zipf_load
from course_lib.validation import choice, divisible, whole

Table = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Stage:
    """What happens next, and in the two all-to-alls which of their turns it is."""

    name: str  # "chosen", "accepted", "dispatch", "compute", "combine" or "summed"
    turn: int = 0


@dataclass(frozen=True)
class ExpertExchange:
    """Choices of each rank's tokens for each expert, and how many of them are accepted.

    Both tables are (ranks, experts); the experts lie on the ranks in order.
    """

    counts: Table
    kept: Table
    capacity: int

    @property
    def ranks(self) -> int:
        """Ranks, each with tokens and with experts."""
        return len(self.counts)

    @property
    def experts_of_a_rank(self) -> int:
        """Experts on each rank."""
        return len(self.counts[0]) // self.ranks

    @property
    def sent(self) -> Table:
        """Rows from each rank to each rank in the dispatch: (sender, receiver)."""
        own = self.experts_of_a_rank
        starts = range(0, len(self.counts[0]), own)
        return tuple(tuple(sum(row[start : start + own]) for start in starts) for row in self.kept)

    @property
    def received(self) -> tuple[int, ...]:
        """Rows that each rank's experts work on."""
        return tuple(sum(column) for column in zip(*self.sent, strict=True))

    @property
    def dropped(self) -> int:
        """Choices that no expert accepts."""
        return sum(map(sum, self.counts)) - sum(map(sum, self.kept))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages in order; both all-to-alls have n turns, of which turn 0 stays at home."""
        turns = range(self.ranks)
        return (
            Stage("chosen"),
            Stage("accepted"),
            *(Stage("dispatch", turn) for turn in turns),
            Stage("compute"),
            *(Stage("combine", turn) for turn in turns),
            Stage("summed"),
        )

    def partners(self, step: int) -> tuple[tuple[int, int], ...]:
        """Who sends to whom in step 0 … n-1 of either all-to-all: rank r to rank r + step.

        Step 0 is what stays. Source: Thakur, Rabenseifner and Gropp 2005, section 4.3.
        """
        whole("step", step, least=0, most=self.ranks - 1)
        return tuple((rank, (rank + step) % self.ranks) for rank in range(self.ranks))

    def turn(self, name: str, rank: int, expert: int) -> int:
        """In which turn of "dispatch" or "combine" a rank's rows for an expert are on their way.

        Dispatch: owner of the expert - rank, modulo n. Combine, which the owner sends: minus that.
        Raises ValueError for a name, a rank or an expert that is not there.
        """
        choice("name", name, ("dispatch", "combine"))
        whole("rank", rank, least=0, most=self.ranks - 1)
        whole("expert", expert, least=0, most=len(self.counts[0]) - 1)
        ahead = expert // self.experts_of_a_rank - rank
        return (ahead if name == "dispatch" else -ahead) % self.ranks


@checked
def expert_exchange(counts: Sequence[Sequence[int]], limit: int) -> ExpertExchange:
    """The exchange for `counts` (ranks, experts) if each expert accepts `limit` choices.

    First come, first served: rank 0's tokens before rank 1's. Raises ValueError for rows of
    different length and experts that do not divide by the ranks. Source: Lepikhin et al. 2020,
    arXiv:2006.16668, section 3.
    """
    whole("limit", limit)
    experts_per_rank(counts)
    room = [limit] * len(counts[0])
    kept = []
    for row in counts:
        taken = [min(choices, free) for choices, free in zip(row, room, strict=True)]
        room = [free - one for free, one in zip(room, taken, strict=True)]
        kept.append(tuple(taken))
    return ExpertExchange(tuple(map(tuple, counts)), tuple(kept), limit)


def skewed_exchange(
    tokens: int, experts: int, top_k: int, ranks: int, *, skew: float, factor: float | None
) -> ExpertExchange:
    """The exchange of `ranks` with `tokens` each, all with the taste of `zipf_load`.

    `factor` is the capacity factor; None: every choice is accepted.
    """
    whole("ranks", ranks)
    whole("experts", experts)
    divisible("experts", experts, "ranks", ranks)
    row = zipf_load(tokens, experts, top_k, skew)
    limit = capacity(ranks * tokens * top_k, experts, factor)
    return expert_exchange((row,) * ranks, limit)
