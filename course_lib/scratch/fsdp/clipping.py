"""Gradient clipping where each rank has another part of the gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch.wire import all_reduce


def clip_shards(
    shards: Sequence[nn.Parameter],
    max_norm: float,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Scale all gradients if their norm over all ranks is above `max_norm`.

    The squares of the parts add up to the square of the whole: one all-reduce
    of 4 bytes. Returns the norm; clipping each rank's part by its own norm
    would turn the gradient's direction.
    """
    squares = torch.stack([shard.grad.square().sum() for shard in shards])
    norm = all_reduce(squares.sum(), group).sqrt()
    for shard in shards:
        shard.grad *= (max_norm / (norm + 1e-6)).clamp(max=1)
    return norm
