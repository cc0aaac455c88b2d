"""Which tokens of a sequence lie on which rank, and how slices travel."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass
class Passing:
    """A tensor on its way to the next rank, while another one arrives."""

    sent: Tensor  # must live until it has been sent
    coming: Tensor
    works: list[dist.Work]

    def wait(self) -> Tensor:
        """What came from the previous rank."""
        for work in self.works:
            work.wait()
        return self.coming


class SequenceRing:
    """The ranks of a group, each with a slice of the sequence.

    A slice is one chunk of n, or with `zigzag` an early and a late one of 2n:
    rank r has r and 2n-1-r. Tokens see all tokens before them, so the last of
    n chunks is the most work; the pairs are all alike. Llama 3,
    arXiv:2407.21783, section 3.3.2.
    """

    def __init__(self, group: ProcessGroup, zigzag: bool = False) -> None:
        self.group, self.zigzag = group, zigzag
        self.rank, self.ranks = dist.get_rank(group), group.size()

    def chunks(self, rank: int) -> list[int]:
        """Numbers of the chunks on `rank`, in the order of the sequence."""
        return [rank, 2 * self.ranks - 1 - rank] if self.zigzag else [rank]

    def places(self, sequence: int) -> Tensor:
        """Positions of this rank's tokens; ValueError for uneven chunks."""
        count = self.ranks * len(self.chunks(0))
        if sequence % count:
            raise ValueError(
                f"sequence {sequence} is not divisible into {count} chunks: "
                f"take a multiple of {count}"
            )
        all_chunks = torch.arange(sequence).chunk(count)
        return torch.cat(
            [all_chunks[chunk] for chunk in self.chunks(self.rank)]
        )

    def cut(self, tensor: Tensor, number: int) -> Tensor:
        """A view of one chunk of a slice, whose tokens are axis -2."""
        return tensor.chunk(len(self.chunks(self.rank)), dim=-2)[number]

    def pairs(self, owner: int) -> Iterator[tuple[int, int, bool]]:
        """Own chunk, a chunk of `owner` that it sees, whether they are one.

        Chunks are numbered within their slice: 0, or 0 and 1.
        """
        mine, theirs = self.chunks(self.rank), self.chunks(owner)
        for (i, queries), (j, keys) in product(
            enumerate(mine), enumerate(theirs)
        ):
            if keys <= queries:
                yield i, j, keys == queries

    def visits(self, tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Every rank's `tensor` with its owner, this rank's first.

        n-1 hops; the next one comes while the caller works on this one.
        """
        for step in range(self.ranks):
            if step < self.ranks - 1:
                passing = self.start(tensor)
            yield (self.rank - step) % self.ranks, tensor
            if step < self.ranks - 1:
                tensor = passing.wait()

    def start(self, tensor: Tensor) -> Passing:
        """Start one hop: to the next rank, and from the previous one."""
        coming = torch.empty_like(tensor)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, self._at(1), self.group),
                dist.P2POp(dist.irecv, coming, self._at(-1), self.group),
            ]
        )
        return Passing(tensor, coming, works)

    def _at(self, step: int) -> int:
        neighbour = (self.rank + step) % self.ranks
        return dist.get_global_rank(self.group, neighbour)
