"""All-reduce along a tree: few steps, each with the whole tensor.

The binomial tree of 8 ranks: 1 -> 0, 3 -> 2, 5 -> 4, 7 -> 6; 2 -> 0, 6 -> 4;
4 -> 0; and the same way back. 2·ceil(log2 n) steps instead of the ring's
2(n-1), but 2·ceil(log2 n) times the tensor over the busiest link.
Source: Thakur, Rabenseifner and Gropp 2005, sections 4.2 and 4.4.
"""

import torch
from torch import Tensor

from course_lib.scratch.collectives.peers import Peers


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
    """How far parent and child are apart: 1, 2, 4, … below n."""
    return [1 << level for level in range((ranks - 1).bit_length())]


def _up(total: Tensor, reach: int, peers: Peers) -> None:
    """Each child sends its sum and its parent adds it; the others wait."""
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
