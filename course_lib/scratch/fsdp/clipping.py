"""Gradient clipping where each rank has a different part of the gradients."""

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

    The squares of the parts add up to the square of the whole, so one
    all-reduce of 4 bytes is enough. Returns the norm. Clipping each rank's
    part by its own norm would change the direction of the gradient.
    """
    gradients = [shard.grad for shard in shards if shard.grad is not None]
    squares = torch.stack([gradient.square().sum() for gradient in gradients])
    norm = all_reduce(squares.sum(), group).sqrt()
    for gradient in gradients:
        gradient *= (max_norm / (norm + 1e-6)).clamp(max=1)
    return norm
