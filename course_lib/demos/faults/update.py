"""What one update of the faulty program has in its hands."""

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Update:
    """What a rank has for one update; `first`: the first in which one rank is broken."""

    rank: int
    world: int
    ones: Tensor
    group: dist.ProcessGroup | None = None  # of the broken rank and the next one
    model: nn.Linear | None = None
    first: bool = False


class NoMoreSamples(Exception):
    """This rank has done its part."""
