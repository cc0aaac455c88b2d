"""Functional collectives that return new tensors, and asynchronous ones.

torch 2.13 renamed all_gather_into_tensor and reduce_scatter_tensor; only this
module knows both names. In the shapes, n is the number of ranks of the group.
"""

from typing import Protocol

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


class Work(Protocol):
    """A collective in flight, like torch's `dist.Work`."""

    def wait(self) -> object:
        """Block until the result is available."""


_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """The sum over ranks; the argument is left unchanged."""
    total = tensor.clone()
    dist.all_reduce(total, group=group)
    return total


def all_gather(shard: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """The shards of all ranks, concatenated: (s, …) -> (n·s, …)."""
    ranks = dist.get_world_size(group)
    whole = shard.new_empty(ranks * shard.shape[0], *shard.shape[1:])
    _gather(whole, shard.contiguous(), group=group)
    return whole


def reduce_scatter(whole: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """This rank's part of the sum over ranks: (n·s, …) -> (s, …)."""
    ranks = dist.get_world_size(group)
    shard = whole.new_empty(whole.shape[0] // ranks, *whole.shape[1:])
    _scatter(shard, whole.contiguous(), group=group)
    return shard


def start_all_reduce(
    tensor: Tensor, group: ProcessGroup | None = None
) -> Work:
    """Start to sum `tensor` in place; `wait()` before reading it."""
    work: Work = dist.all_reduce(tensor, group=group, async_op=True)
    return work


def start_all_gather(
    whole: Tensor, shard: Tensor, group: ProcessGroup | None = None
) -> dist.Work:
    """Start to gather all shards into `whole`; `wait()` before reading it."""
    return _gather(whole, shard, group=group, async_op=True)


def start_reduce_scatter(
    shard: Tensor, whole: Tensor, group: ProcessGroup | None = None
) -> dist.Work:
    """Start to reduce-scatter `whole` into `shard`; `wait()` before use."""
    return _scatter(shard, whole, group=group, async_op=True)
