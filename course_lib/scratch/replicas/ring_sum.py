"""DDP's all-reduce by the two halves of a ring, made of messages."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from course_lib.scratch.collectives.peers import Peers
from course_lib.scratch.collectives.ring import (
    ring_all_gather,
    ring_reduce_scatter,
)


@dataclass
class RingSum:
    """The sum of `flat` over ranks, in place, by a ring; for DDP's buckets.

    Nothing is sent before `wait`: no thread works beside backward, so nothing
    overlaps. All ranks wait for their buckets in one order, so none hangs.
    """

    flat: Tensor
    peers: Peers
    reduce_scatter: Callable[[Tensor, Peers], Tensor] = ring_reduce_scatter
    all_gather: Callable[[Tensor, Peers, int], Tensor] = ring_all_gather

    def wait(self) -> None:
        """Send around the ring, and return when the sum is there."""
        part = self.reduce_scatter(self.flat, self.peers)
        self.flat.copy_(self.all_gather(part, self.peers, len(self.flat)))
