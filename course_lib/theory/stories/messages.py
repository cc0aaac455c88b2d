"""Traces of collectives and of algorithms built on them, message by message.

Parts of these traces are indices of tensor parts, pairs of ranks, or chunks of keys. Time counts
steps; all events of one step are simultaneous.
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

MOST_RANKS = 32  # as many as fit into a figure
_Ranks = Annotated[int, partial(whole, least=2, most=MOST_RANKS)]
STAY = "stay"  # replaces a message from a rank to itself
Table = tuple[tuple[int, ...], ...]


def ring_steps(ranks: _Ranks, part_bytes: Count = 1) -> Trace:
    """The ring all-reduce: n-1 steps in which parts are added, n-1 in which sums are copied.

    Part i starts at rank i+1 and is complete at rank i. Source: Patarasuk and Yuan 2009,
    doi:10.1016/j.jpdc.2008.09.002, section 3.
    """
    taken = [Event(0, r, TAKE, p, bytes=part_bytes) for r in range(ranks) for p in range(ranks)]
    sent = [
        Event(step, r, ADD if step < ranks else COPY, (r - step) % ranks, (r + 1) % ranks)
        for step in range(1, 2 * ranks - 1)
        for r in range(ranks)
    ]
    return Trace([*taken, *(one._replace(bytes=part_bytes) for one in sent)])


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
    """Causal ring attention over `sequence` tokens: keys and values are passed around a ring.

    At 0 each rank holds its own ("keys", rank). At 1, 3, … it computes each pair of chunks
    (queries, keys) that the mask allows; at 2, 4, … it passes its current keys on. Source: Liu et
    al. 2023, arXiv:2310.01889, section 3; zig-zag: Llama 3, arXiv:2407.21783, section 3.3.2.
    """
    divisible("sequence", sequence, "chunks", ranks * (2 if zigzag else 1))
    size = sequence // ranks * token_bytes
    held = [chunks(rank, ranks, zigzag) for rank in range(ranks)]
    events = [Event(0, rank, TAKE, ("keys", rank), bytes=size) for rank in range(ranks)]
    for rank, step in product(range(ranks), range(ranks)):
        owner = (rank - step) % ranks
        pairs = [(q, k) for q, k in product(held[rank], held[owner]) if k <= q]
        events += [Event(2 * step + 1, rank, "work", pair) for pair in pairs]
        if step < ranks - 1:
            keys, hop = ("keys", owner), 2 * step + 2
            events.append(Event(hop, rank, COPY, keys, (rank + 1) % ranks, size))
            events.append(Event(hop, rank, FREE, keys))
    return Trace(events)


# --- tokens to experts and back -------------------------------------------------------------------


@dataclass(frozen=True)
class ExpertExchange:
    """Choices of each rank's tokens for each expert, and the accepted ones (`kept`).

    Both tables are (ranks, experts); experts are placed on the ranks in order.
    """

    counts: Table
    kept: Table
    capacity: int

    @property
    def ranks(self) -> int:
        """Number of ranks; each has tokens and experts."""
        return len(self.counts)

    @property
    def experts_of_a_rank(self) -> int:
        """Number of experts per rank."""
        return len(self.counts[0]) // self.ranks

    @property
    def sent(self) -> Table:
        """Rows sent in the dispatch: table (sender, receiver)."""
        size = self.experts_of_a_rank
        starts = range(0, len(self.counts[0]), size)
        return tuple(tuple(sum(row[start : start + size]) for start in starts) for row in self.kept)

    @property
    def received(self) -> tuple[int, ...]:
        """Rows that each rank's experts process."""
        return tuple(sum(column) for column in zip(*self.sent, strict=True))

    @property
    def dropped(self) -> int:
        """Number of choices that are dropped."""
        return sum(map(sum, self.counts)) - sum(map(sum, self.kept))


def expert_exchange(counts: Sequence[Sequence[int]], limit: Count) -> ExpertExchange:
    """The exchange for `counts` (ranks, experts) if each expert accepts `limit` choices.

    First come, first served: rank 0's tokens before rank 1's. Raises ValueError for rows of
    different lengths and a number of experts that the ranks do not divide. Source: Lepikhin et al.
    2020, arXiv:2006.16668, section 3.
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
    """The exchange of `ranks` with `tokens` each and the expert popularity of `zipf_load`.

    `factor` is the capacity factor; None: every choice is accepted.
    """
    divisible("experts", experts, "ranks", ranks)
    row = zipf_load(tokens, experts, top_k, skew)
    limit = capacity(ranks * tokens * top_k, experts, factor)
    return expert_exchange((row,) * ranks, limit)


def expert_steps(exchange: ExpertExchange, row_bytes: Count = 1) -> Trace:
    """An exchange as a trace: choices at 0, acceptance at 1, dispatch and combine in n turns each.

    ("rows", r, e) are rank r's tokens for the experts of rank e; ("results", r, e) their outputs.
    In turn k of either all-to-all rank r sends to rank r+k; turn 0 stays on the rank. "work" is
    between the two, "sum" at the end. Source: Thakur, Rabenseifner and Gropp 2005, section 4.3.
    """
    ranks, busiest = exchange.ranks, max(exchange.received)
    computing, end = 2 + ranks, 3 + 2 * ranks
    events = []
    for rank, turn in product(range(ranks), range(ranks)):
        to = (rank + turn) % ranks
        sent, returned = (exchange.sent[a][b] * row_bytes for a, b in ((rank, to), (to, rank)))
        rows, results = ("rows", rank, to), ("results", to, rank)
        events.append(Event(1, rank, TAKE, rows, bytes=sent))
        events.append(Event(2 + turn, rank, COPY, rows, to, sent))
        events.append(Event(computing, rank, TAKE, results, bytes=returned))
        events.append(Event(computing + 1 + turn, rank, COPY, results, to, returned))
    for rank, received in enumerate(exchange.received):
        choices = sum(exchange.counts[rank])
        events.append(Event(0, rank, "choose", choices))
        events.append(Event(computing, rank, "work", end=computing + received / max(busiest, 1)))
        events.append(Event(end, rank, "sum"))
    stays = [one._replace(what=STAY, to=None) if one.to == one.who else one for one in events]
    return Trace(stays)


# --- a pair of split matrices ---------------------------------------------------------------------

MLP, ATTENTION = "mlp", "attention"
# Columns of the first matrix and rows of the second, in units of the hidden size.
PAIR_WIDTHS = {MLP: (4, 4), ATTENTION: (3, 1)}


class Tensor(NamedTuple):
    """A tensor on a rank: X, f(X), XA, Y, YB, Z; backward dZ, g(dZ), dY, dXA, dX part, dX."""

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
    """Forward and backward of an "mlp" (A is h × 4h, B 4h × h) or "attention" (h × 3h, h × h).

    In each step a rank produces one `Tensor`, possibly by a collective. f copies in forward and
    sums in backward, g sums in forward and copies in backward; with `sequence_parallel` they gather
    and scatter tokens instead. `tokens` counts those of all ranks. Raises ValueError if the ranks
    do not divide hidden size or tokens, and for fewer than two ranks. Source: Shoeybi et al. 2019,
    arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """
    divisible("hidden", hidden, "ranks", ranks)
    if sequence_parallel:
        divisible("tokens", tokens, "ranks", ranks)
    inner, middle = (hidden * width // ranks for width in PAIR_WIDTHS[kind])
    outside = tokens // ranks if sequence_parallel else tokens
    gather = "all-gather" if sequence_parallel else ""
    add = "reduce-scatter" if sequence_parallel else "all-reduce"
    tensors = (
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
    for (step, (tensor, call)), rank in product(enumerate(tensors), range(ranks)):
        if call:
            events.append(Event(step, rank, call, tensor.name, bytes=size))
        tensor_bytes = tensor.rows * tensor.columns * element_bytes
        events.append(Event(step, rank, TAKE, tensor, bytes=tensor_bytes))
    return Trace(events)


check_public(globals())
