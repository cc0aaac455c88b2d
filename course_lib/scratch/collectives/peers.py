"""Messages between ranks, over the machine's links or over slower ones.

The ring and the tree beside this module are made of these messages and of
nothing else.
"""

import time

import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp, ProcessGroup


class Peers:
    """The n ranks of a group, numbered 0 to n-1; this one is among them."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        group = group or dist.group.WORLD
        assert group is not None, "there is no process group: launch.init()"
        self.group = group
        self.rank = dist.get_rank(self.group)
        self.ranks = dist.get_world_size(self.group)
        self.rounds = 0  # how often this rank has sent, received, or both

    def swap(self, out: Tensor, to: int, into: Tensor, source: int) -> None:
        """Send `out` and fill `into`, both at once.

        If every rank sent first and received afterwards, all could wait for
        each other endlessly: a send may end only when it is received.
        """
        # The receive goes first: gloo asks for what it is to receive, and
        # the request would wait behind everything that we send.
        self._exchange(
            [self._receive_op(into, source), self._send_op(out, to)]
        )

    def send(self, out: Tensor, to: int) -> None:
        """Send `out` to one rank."""
        self._exchange([self._send_op(out, to)])

    def receive(self, into: Tensor, source: int) -> None:
        """Fill `into` with what one rank sends."""
        self._exchange([self._receive_op(into, source)])

    def _send_op(self, tensor: Tensor, to: int) -> P2POp:
        return P2POp(dist.isend, tensor, self._number(to), self.group)

    def _receive_op(self, tensor: Tensor, source: int) -> P2POp:
        return P2POp(dist.irecv, tensor, self._number(source), self.group)

    def _number(self, peer: int) -> int:
        """The rank in the whole world of rank `peer` of the group."""
        return dist.get_global_rank(self.group, peer % self.ranks)

    def _exchange(self, messages: list[P2POp]) -> None:
        self.rounds += 1
        # Both ends know the sizes: what is empty is not sent at all.
        messages = [one for one in messages if one.tensor.numel()]
        for work in dist.batch_isend_irecv(messages) if messages else []:
            work.wait()


class SlowPeers(Peers):
    """The same ranks, each behind a link of its own.

    A message arrives `latency_s` + bytes / `bytes_per_s` after it was sent:
    the α–β model, kept by sleeping before the message goes out. The limit
    is on what a rank sends; it may receive from two others at full speed.
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
