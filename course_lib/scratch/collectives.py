"""Collectives built from point-to-point messages between ranks."""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp, ProcessGroup

# Messages between ranks, over the machine's links or over slower ones.
#
# The ring and tree collectives below are built from these messages alone.


class Peers:
    """The n ranks of a group, numbered 0 to n-1, including this one."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        group = group or dist.group.WORLD
        assert group is not None, "there is no process group: launch.init()"
        self.group = group
        self.rank = dist.get_rank(self.group)
        self.ranks = dist.get_world_size(self.group)
        self.rounds = 0  # how often this rank has sent, received, or both

    def swap(self, out: Tensor, to: int, into: Tensor, source: int) -> None:
        """Send `out` and receive into `into`, both at once.

        If every rank sent first and received afterwards, they could deadlock:
        a send may complete only once it is received.
        """
        # Post the receive first: gloo requests what it is to receive, and
        # the request would queue behind everything that we send.
        self._exchange(
            [self._receive_op(into, source), self._send_op(out, to)]
        )

    def send(self, out: Tensor, to: int) -> None:
        """Send `out` to one rank."""
        self._exchange([self._send_op(out, to)])

    def receive(self, into: Tensor, source: int) -> None:
        """Receive into `into` from rank `source`."""
        self._exchange([self._receive_op(into, source)])

    def _send_op(self, tensor: Tensor, to: int) -> P2POp:
        return P2POp(dist.isend, tensor, self._number(to), self.group)

    def _receive_op(self, tensor: Tensor, source: int) -> P2POp:
        return P2POp(dist.irecv, tensor, self._number(source), self.group)

    def _number(self, peer: int) -> int:
        """The global rank of rank `peer` of the group."""
        return dist.get_global_rank(self.group, peer % self.ranks)

    def _exchange(self, messages: list[P2POp]) -> None:
        self.rounds += 1
        # Both sides know the sizes, so empty tensors are not sent at all.
        messages = [one for one in messages if one.tensor.numel()]
        for work in dist.batch_isend_irecv(messages) if messages else []:
            work.wait()


class SlowPeers(Peers):
    """Peers whose sends are throttled to an emulated link.

    A message arrives `latency_s` + bytes / `bytes_per_s` after it was sent:
    the α–β model, emulated by sleeping before the send. Only what a rank
    sends is limited; it may receive from two others at full speed.
    """

    def __init__(
        self,
        bytes_per_s: float,
        latency_s: float = 0.0,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(group)
        self.bytes_per_s, self.latency_s = bytes_per_s, latency_s

    def _exchange(self, messages: list[P2POp]) -> None:
        for size in [m.tensor.nbytes for m in messages if m.op is dist.isend]:
            time.sleep(self.latency_s + size / self.bytes_per_s)
        super()._exchange(messages)


# Collectives built from messages: three rings and the pairwise exchange.
#
# In a ring, each of n ranks sends only to the next one and receives only from
# the previous one. After n-1 steps every part of a tensor has been everywhere.
# Sources: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms",
# section 3; Thakur, Rabenseifner and Gropp 2005, sections 4.1 and 4.3.
#
# Parts follow torch.tensor_split: the first ones are one row longer if n does
# not divide the rows, and some are empty if there are fewer than n rows.


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
    """Send part i to rank i; received parts are ordered by sender.

    In step k, rank r sends to r+k and receives from r-k: every rank has one
    message each way, and none receives two at a time.
    (n·s, …) -> (n·s, …).
    """
    parts = whole.contiguous().tensor_split(peers.ranks)
    mine = parts[peers.rank]  # every rank sends this one a part of this size
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


# All-reduce along a tree: few steps, each with the whole tensor.
#
# The binomial tree of 8 ranks: 1 -> 0, 3 -> 2, 5 -> 4, 7 -> 6; 2 -> 0, 6 -> 4;
# 4 -> 0; then the reverse. 2·ceil(log2 n) steps instead of the ring's
# 2(n-1), but 2·ceil(log2 n) times the tensor over the busiest link.
# Source: Thakur, Rabenseifner and Gropp 2005, sections 4.2 and 4.4.


def tree_all_reduce(tensor: Tensor, peers: Peers) -> Tensor:
    """The sum over ranks: up the tree to rank 0, and down again."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    levels = _levels(peers.ranks)
    for reach in levels:
        _up(total, reach, peers)
    for reach in reversed(levels):
        _down(total, reach, peers)
    return total


def _levels(ranks: int) -> list[int]:
    """Distances between parent and child by level: 1, 2, 4, … below n."""
    return [1 << level for level in range((ranks - 1).bit_length())]


def _up(total: Tensor, reach: int, peers: Peers) -> None:
    """Each child sends its sum to its parent, which adds it; others idle."""
    if peers.rank % (2 * reach) == reach:
        peers.send(total, peers.rank - reach)
    elif peers.rank % (2 * reach) == 0 and peers.rank + reach < peers.ranks:
        arrived = torch.empty_like(total)
        peers.receive(arrived, peers.rank + reach)
        total += arrived


def _down(total: Tensor, reach: int, peers: Peers) -> None:
    """Each parent sends the whole sum to its child."""
    if peers.rank % (2 * reach) == reach:
        peers.receive(total, peers.rank - reach)
    elif peers.rank % (2 * reach) == 0 and peers.rank + reach < peers.ranks:
        peers.send(total, peers.rank + reach)
