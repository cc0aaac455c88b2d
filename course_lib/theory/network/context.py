"""Context parallelism: attention scores per rank, and block sizes that hide ring messages."""

from functools import partial
from typing import Annotated

from course_lib.checked import Count, Positive, check_public
from course_lib.validation import divisible, whole

_MOST_RANKS = 65_536


def chunks(
    rank: int, ranks: Annotated[int, partial(whole, most=_MOST_RANKS)], zigzag: bool = False
) -> tuple[int, ...]:
    """Chunks of the sequence on `rank`: one of n, or under zig-zag an early and a late one of 2n.

    Source: Llama 3, arXiv:2407.21783, section 3.3.2.
    """
    whole("rank", rank, least=0, most=ranks - 1)
    return (rank, 2 * ranks - 1 - rank) if zigzag else (rank,)


def rank_scores(sequence: Count, rank: int, ranks: int, *, zigzag: bool = False) -> int:
    """Number of attention scores (query times key) per head and sequence that `rank` computes.

    A chunk of c tokens has c² scores with each earlier chunk, and c² with itself, of which the
    causal mask then discards c(c-1)/2.
    """
    mine = chunks(rank, ranks, zigzag)
    divisible("sequence", sequence, "chunks", ranks * len(mine))
    size = sequence // (ranks * len(mine))
    return sum((chunk + 1) * size**2 for chunk in mine)


def hidden_ring_tokens(
    flop_per_s: Positive,
    bytes_per_s: Positive,
    hidden: Count,
    kv_width: Count,
    *,
    element_bytes: Count = 2,
) -> float:
    """Tokens per rank at which computing a block takes as long as sending the next one.

    Without a mask: 4 c² h FLOP for a block of c queries and c keys, 2 c kv_width elements to send,
    so c = element_bytes · kv_width / (2 h) · (FLOP/s) / (bytes/s). With as many key heads as query
    heads and 2-byte elements that is FLOP/s over bytes/s. Source: Liu et al. 2023,
    arXiv:2310.01889, section 3.
    """
    send_s = 2 * kv_width * element_bytes / bytes_per_s  # per token
    return send_s * flop_per_s / (4 * hidden)


check_public(globals())
