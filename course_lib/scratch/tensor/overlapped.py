"""Products that hide their messages: collective matmul, or async TP.

The collectives around a pair are cut into the shares of the ranks. While one
share travels, the rank multiplies another. Tokens are the first dimension.
Wang et al. 2023, ASPLOS, https://doi.org/10.1145/3567955.3567959.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from course_lib.scratch.context.slices import SequenceRing


def gather_and_multiply(
    x: Tensor, weight: Tensor, ring: SequenceRing
) -> Tensor:
    """All-gather, then `linear`: (s, in) -> (ranks·s, out)."""
    parts = {}
    for owner, share in ring.visits(x):  # the next one is on its way
        parts[owner] = linear(share, weight)
    return torch.cat([parts[rank] for rank in range(ring.ranks)])


def multiply_and_scatter(
    x: Tensor, weight: Tensor, ring: SequenceRing
) -> Tensor:
    """`linear`, then reduce-scatter: (ranks·s, in) -> (s, out).

    The sum for each rank's tokens starts at the next rank and goes around
    the ring; it comes home last, where it gets the last part.
    """
    shares, passing = x.chunk(ring.ranks), None
    for step in range(1, ring.ranks + 1):
        home = (ring.rank - step) % ring.ranks
        total = linear(shares[home], weight)  # while the others' sum arrives
        if passing:
            total += passing.wait()
        if home != ring.rank:
            passing = ring.start(total)
    return total
