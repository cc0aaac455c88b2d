"""Collectives and what is made of them, message by message.

Parts of a trace here: the numbers of a tensor's parts, pairs of ranks, chunks of keys. The clock
counts steps; what happens in one step happens at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, NamedTuple

from course_lib.checked import Count, check_public
from course_lib.theory.network.context import chunks
from course_lib.theory.network.experts import capacity, experts_per_rank, zipf_load
from course_lib.trace import ADD, COPY, FREE, TAKE, Event, Trace
from course_lib.validation import divisible, whole

MOST_RANKS = 32  # as many as a picture has room for
_Ranks = Annotated[int, partial(whole, least=2, most=MOST_RANKS)]
STAY = "stay"  # what is sent to oneself
Table = tuple[tuple[int, ...], ...]


def ring_steps(ranks: _Ranks, part_bytes: Count = 1) -> Trace:
    """The ring all-reduce: n-1 steps in which parts are added, n-1 in which sums are copied.

    Part i sets out at rank i+1 and is complete at rank i. Source: Patarasuk and Yuan 2009,
    doi:10.1016/j.jpdc.2008.09.002, section 3.
    """
    own = [Event(0, r, TAKE, p, bytes=part_bytes) for r in range(ranks) for p in range(ranks)]
    sent = [
        Event(step, r, ADD if step < ranks else COPY, (r - step) % ranks, (r + 1) % ranks)
        for step in range(1, 2 * ranks - 1)
        for r in range(ranks)
    ]
    return Trace([*own, *(one._replace(bytes=part_bytes) for one in sent)])


def tree_steps(ranks: _Ranks, size_bytes: Count = 1) -> Trace:
    """The binomial tree: sums go up to rank 0 in ceil(log2 n) steps, and the same way down.

    The whole tensor is part 0. Source: Thakur, Rabenseifner and Gropp 2005,
    doi:10.1177/1094342005051521, sections 4.2 and 4.4.
    """
    levels = (ranks - 1).bit_length()
    events = [Event(0, rank, TAKE, 0, bytes=size_bytes) for rank in range(ranks)]
    for level in range(levels):
        for child in range(1 << level, ranks, 2 << level):
            parent, down = child - (1 << level), 2 * levels - level
            events.append(Event(level + 1, child, ADD, 0, parent, size_bytes))
            events.append(Event(down, parent, COPY, 0, child, size_bytes))
    return Trace(events)


def ring_attention_steps(
    sequence: Count, ranks: _Ranks, *, zigzag: bool = False, token_bytes: Count = 1
) -> Trace:
    """Causal attention of `sequence` tokens whose keys and values go round a ring.

    At 0 each rank has its own ("keys", rank). At 1, 3, … rank r works, on each pair of chunks
    (queries, keys) that the mask lets meet; at 2, 4, … it hands its keys on. Source: Liu et al.
    2023, arXiv:2310.01889, section 3; zig-zag: Llama 3, arXiv:2407.21783, section 3.3.2.
    """
    divisible("sequence", sequence, "chunks", ranks * (2 if zigzag else 1))
    size = sequence // ranks * token_bytes
    mine = [chunks(rank, ranks, zigzag) for rank in range(ranks)]
    events = [Event(0, rank, TAKE, ("keys", rank), bytes=size) for rank in range(ranks)]
    for rank, step in product(range(ranks), range(ranks)):
        owner = (rank - step) % ranks
        met = [(q, k) for q, k in product(mine[rank], mine[owner]) if k <= q]
        events += [Event(2 * step + 1, rank, "work", pair) for pair in met]
        if step < ranks - 1:
            keys, hop = ("keys", owner), 2 * step + 2
            events.append(Event(hop, rank, COPY, keys, (rank + 1) % ranks, size))
            events.append(Event(hop, rank, FREE, keys))
    return Trace(events)


# --- tokens to experts and back -------------------------------------------------------------------


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


def expert_exchange(counts: Sequence[Sequence[int]], limit: Count) -> ExpertExchange:
    """The exchange for `counts` (ranks, experts) if each expert accepts `limit` choices.

    First come, first served: rank 0's tokens before rank 1's. Raises ValueError for rows of
    different length and experts that do not divide by the ranks. Source: Lepikhin et al. 2020,
    arXiv:2006.16668, section 3.
    """
    experts_per_rank(counts)
    room = [limit] * len(counts[0])
    kept = []
    for row in counts:
        taken = [min(choices, free) for choices, free in zip(row, room, strict=True)]
        room = [free - one for free, one in zip(room, taken, strict=True)]
        kept.append(tuple(taken))
    return ExpertExchange(tuple(map(tuple, counts)), tuple(kept), limit)


def skewed_exchange(
    tokens: int, experts: Count, top_k: int, ranks: Count, *, skew: float, factor: float | None
) -> ExpertExchange:
    """The exchange of `ranks` with `tokens` each, all with the taste of `zipf_load`.

    `factor` is the capacity factor; None: every choice is accepted.
    """
    divisible("experts", experts, "ranks", ranks)
    row = zipf_load(tokens, experts, top_k, skew)
    limit = capacity(ranks * tokens * top_k, experts, factor)
    return expert_exchange((row,) * ranks, limit)


def expert_steps(exchange: ExpertExchange, row_bytes: Count = 1) -> Trace:
    """Tokens are chosen at 0, accepted at 1, travel to their experts and back in n turns each.

    ("rows", r, e): what rank r has for the experts of rank e; ("results", r, e): what comes back.
    In turn k of either all-to-all rank r sends to rank r+k; turn 0 is what stays at home. Then
    "work", then "sum". Source: Thakur, Rabenseifner and Gropp 2005, section 4.3.
    """
    ranks, busiest = exchange.ranks, max(exchange.received)
    computing, end = 2 + ranks, 3 + 2 * ranks
    events = []
    for rank, turn in product(range(ranks), range(ranks)):
        to = (rank + turn) % ranks
        there, back = (exchange.sent[a][b] * row_bytes for a, b in ((rank, to), (to, rank)))
        rows, results = ("rows", rank, to), ("results", to, rank)
        events.append(Event(1, rank, TAKE, rows, bytes=there))
        events.append(Event(2 + turn, rank, COPY, rows, to, there))
        events.append(Event(computing, rank, TAKE, results, bytes=back))
        events.append(Event(computing + 1 + turn, rank, COPY, results, to, back))
    for rank, received in enumerate(exchange.received):
        choices = sum(exchange.counts[rank])
        events.append(Event(0, rank, "choose", choices))
        events.append(Event(computing, rank, "work", end=computing + received / max(busiest, 1)))
        events.append(Event(end, rank, "sum"))
    stays = [one._replace(what=STAY, to=None) if one.to == one.who else one for one in events]
    return Trace(stays)


# --- a pair of cut matrices -----------------------------------------------------------------------

MLP, ATTENTION = "mlp", "attention"
# Columns of the first matrix and rows of the second, in units of the hidden size.
PAIR_WIDTHS = {MLP: (4, 4), ATTENTION: (3, 1)}


class Tensor(NamedTuple):
    """What a rank makes: X, f(X), XA, Y, YB, Z; backward dZ, g(dZ), dY, dXA, dX part, dX."""

    name: str
    rows: int  # tokens
    columns: int


def pair_steps(
    kind: Annotated[str, PAIR_WIDTHS],
    hidden: Count,
    tokens: Count,
    ranks: _Ranks,
    *,
    element_bytes: Count = 2,
    sequence_parallel: bool = False,
) -> Trace:
    """An "mlp" (A is h × 4h, B 4h × h) or an "attention" (A is h × 3h, B h × h), there and back.

    In each step a rank takes one `Tensor`, and may call a collective for it. f copies forward and
    sums backward, g sums forward and copies backward; with `sequence_parallel` they gather and
    scatter tokens instead. `tokens` of all ranks together. Raises ValueError where the ranks do
    not divide hidden size or tokens, and for fewer than two. Source: Shoeybi et al. 2019,
    arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """
    divisible("hidden", hidden, "ranks", ranks)
    if sequence_parallel:
        divisible("tokens", tokens, "ranks", ranks)
    inner, middle = (hidden * width // ranks for width in PAIR_WIDTHS[kind])
    outside = tokens // ranks if sequence_parallel else tokens
    gather = "all-gather" if sequence_parallel else ""
    add = "reduce-scatter" if sequence_parallel else "all-reduce"
    made = (
        (Tensor("X", outside, hidden), ""),
        (Tensor("f(X)", tokens, hidden), gather),
        (Tensor("XA", tokens, inner), ""),
        (Tensor("Y", tokens, middle), ""),
        (Tensor("YB", tokens, hidden), ""),
        (Tensor("Z", outside, hidden), add),
        (Tensor("dZ", outside, hidden), ""),
        (Tensor("g(dZ)", tokens, hidden), gather),
        (Tensor("dY", tokens, middle), ""),
        (Tensor("dXA", tokens, inner), ""),
        (Tensor("dX part", tokens, hidden), ""),
        (Tensor("dX", outside, hidden), add),
    )
    size = tokens * hidden * element_bytes
    events = []
    for (step, (tensor, call)), rank in product(enumerate(made), range(ranks)):
        if call:
            events.append(Event(step, rank, call, tensor.name, bytes=size))
        its_bytes = tensor.rows * tensor.columns * element_bytes
        events.append(Event(step, rank, TAKE, tensor, bytes=its_bytes))
    return Trace(events)


check_public(globals())
