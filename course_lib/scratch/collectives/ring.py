"""Collectives made of messages: three rings and the pairwise exchange.

In a ring, each of n ranks sends only to the next one and receives only from
the previous one. After n-1 steps every part of a tensor has been everywhere.
Sources: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms",
section 3; Thakur, Rabenseifner and Gropp 2005, sections 4.1 and 4.3.

Parts are those of torch.tensor_split: the first ones are a row longer if n
does not divide the rows, and some are empty if there are fewer rows than n.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.scratch.collectives.peers import Peers


def ring_all_reduce(tensor: Tensor, peers: Peers) -> Tensor:
    """The sum over ranks, in 2(n-1) steps of 1/n of the tensor each."""
    total = _copy(tensor)
    parts = total.view(-1).tensor_split(peers.ranks)  # views of `total`
    _add_around(parts, peers)
    _copy_around(parts, peers)
    return total


def ring_reduce_scatter(whole: Tensor, peers: Peers) -> Tensor:
    """This rank's part of the sum over ranks: (n·s, …) -> (s, …)."""
    parts = _copy(whole).tensor_split(peers.ranks)
    _add_around(parts, peers)
    return parts[peers.rank].clone()


def ring_all_gather(
    shard: Tensor, peers: Peers, rows: int | None = None
) -> Tensor:
    """The parts of all ranks, concatenated: (s, …) -> (n·s, …).

    `rows` is the length of the result, if the parts differ; default n·s.
    """
    rows = peers.ranks * shard.shape[0] if rows is None else rows
    whole = shard.new_empty(rows, *shard.shape[1:])
    parts = whole.tensor_split(peers.ranks)
    parts[peers.rank].copy_(shard)
    _copy_around(parts, peers)
    return whole


def all_to_all(whole: Tensor, peers: Peers) -> Tensor:
    """Part i goes to rank i; what arrives is in the order of the senders.

    In step k, rank r sends to r+k and receives from r-k: every rank is busy
    with one message each way, and none receives two at a time.
    (n·s, …) -> (n·s, …).
    """
    parts = whole.contiguous().tensor_split(peers.ranks)
    mine = parts[peers.rank]  # as long as what each rank sends to this one
    arrived = mine.new_empty(peers.ranks, *mine.shape)
    arrived[peers.rank] = mine
    for k in range(1, peers.ranks):
        to = (peers.rank + k) % peers.ranks
        source = (peers.rank - k) % peers.ranks
        peers.swap(parts[to], to, arrived[source], source)
    return arrived.flatten(0, 1)


def _add_around(parts: Sequence[Tensor], peers: Peers) -> None:
    """n-1 steps, after which parts[rank] is the sum over ranks.

    Part i starts at rank i+1 and gains one summand at each rank, until it
    reaches rank i, its last stop.
    """
    n, rank = peers.ranks, peers.rank
    for step in range(1, n):
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        arrived = torch.empty_like(into)
        peers.swap(out, rank + 1, arrived, rank - 1)
        into += arrived


def _copy_around(parts: Sequence[Tensor], peers: Peers) -> None:
    """n-1 steps, after which every rank has all parts.

    Each rank sends its own part first, then the one that it just received.
    """
    n, rank = peers.ranks, peers.rank
    for step in range(n - 1):
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        peers.swap(out, rank + 1, into, rank - 1)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
