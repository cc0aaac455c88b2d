"""Weight decay for matrices only, where all weights lie in one flat vector."""

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.scratch.zero.flat import flatten
from course_lib.scratch.zero.shard import Unit
from course_lib.scratch.zero.stages import Zero


def marks(unit: Unit) -> Tensor:
    """1 where an element of this rank's part decays, else 0 (s).

    Matrices decay; norms, biases and the padding do not.
    """
    whole = [
        torch.full_like(p, float(p.ndim > 1), dtype=torch.float32)
        for p in unit.parameters
    ]
    parts = flatten(whole, unit.ranks).chunk(unit.ranks)
    return parts[dist.get_rank() % unit.ranks]


@torch.no_grad()
def decay(zero: Zero, rate: float) -> None:
    """Before `zero.step()`: w ← w · (1 − rate · mark), on the own part.

    `rate` is learning rate · weight decay, as in AdamW, whose own decay must
    be 0. Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """
    for unit in zero.units.values():
        unit.master.mul_(1 - rate * marks(unit).to(unit.master.device))
