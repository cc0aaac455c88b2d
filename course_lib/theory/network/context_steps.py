"""Ring attention step by step: which rank works on which block of scores with whose keys."""

from dataclasses import dataclass
from itertools import product

from course_lib.theory.network.context import chunks
from course_lib.validation import divisible, flag, whole

_MOST_RANKS = 64


@dataclass(frozen=True)
class ScoreBlock:
    """A chunk of queries and a chunk of keys, by their numbers in the sequence."""

    queries: int
    keys: int

    @property
    def masked(self) -> bool:
        """The chunk meets itself: the mask hides the later half."""
        return self.queries == self.keys


@dataclass(frozen=True)
class RingStep:
    """What every rank does between two hops: whose keys and values it has, and its blocks."""

    owners: tuple[int, ...]  # by rank
    blocks: tuple[tuple[ScoreBlock, ...], ...]  # by rank


@dataclass(frozen=True)
class RingAttentionSteps:
    """All steps of one layer's forward pass on `ranks` ranks with `chunk_tokens` in each chunk."""

    ranks: int
    zigzag: bool
    chunk_tokens: int
    steps: tuple[RingStep, ...]

    @property
    def chunk_count(self) -> int:
        """Chunks of the whole sequence: n, or 2n with zig-zag."""
        return self.ranks * (2 if self.zigzag else 1)

    def scores(self, step: int) -> tuple[int, ...]:
        """Scores that each rank computes in one step; those hidden by the mask are counted."""
        whole("step", step, least=0, most=self.ranks - 1)
        return tuple(len(blocks) * self.chunk_tokens**2 for blocks in self.steps[step].blocks)

    @property
    def rank_scores(self) -> tuple[int, ...]:
        """Scores of each rank in all steps."""
        columns = zip(*(self.scores(step) for step in range(self.ranks)), strict=True)
        return tuple(sum(column) for column in columns)

    @property
    def lasting_scores(self) -> int:
        """The busiest rank of each step, added up: nobody starts the next step before it."""
        return sum(max(self.scores(step)) for step in range(self.ranks))

    @property
    def busy_fraction(self) -> float:
        """All scores over ranks · lasting_scores: 1 when nobody waits."""
        return sum(self.rank_scores) / (self.ranks * self.lasting_scores)


def ring_attention_steps(sequence: int, ranks: int, *, zigzag: bool = False) -> RingAttentionSteps:
    """Causal attention of `sequence` tokens whose keys and values go round a ring.

    In step s rank r has those of rank r-s, and works on the chunks that its queries may see.
    Raises ValueError for uneven chunks. Source: Liu et al. 2023, arXiv:2310.01889, section 3;
    zig-zag: Llama 3, arXiv:2407.21783, section 3.3.2.
    """
    whole("sequence", sequence)
    whole("ranks", ranks, least=2, most=_MOST_RANKS)
    flag("zigzag", zigzag)
    count = ranks * (2 if zigzag else 1)
    divisible("sequence", sequence, "chunks", count)
    mine = [chunks(rank, ranks, zigzag) for rank in range(ranks)]
    steps = []
    for step in range(ranks):
        owners = tuple((rank - step) % ranks for rank in range(ranks))
        blocks = tuple(
            tuple(ScoreBlock(q, k) for q, k in product(mine[rank], mine[owner]) if k <= q)
            for rank, owner in enumerate(owners)
        )
        steps.append(RingStep(owners, blocks))
    return RingAttentionSteps(ranks, zigzag, sequence // count, tuple(steps))
