"""Object collectives between ranks, and the names of devices."""

from collections.abc import Mapping
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib.launch import Rank

T = TypeVar("T")


def world() -> ProcessGroup:
    """The group of all ranks; RuntimeError if there is none."""
    group = dist.group.WORLD
    if group is None:
        raise RuntimeError("there is no process group yet: call launch.init() first")
    return group


def from_all_ranks(value: T) -> list[T]:
    """Gather `value` from every rank, by rank; a collective call. Tensors must be on the CPU."""
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return cast(list[T], values)


def joined(own: Mapping[str, T]) -> dict[str, T]:
    """Merge the mappings of all ranks; for a name on several ranks, the last rank's wins."""
    return {name: value for one in from_all_ranks(own) for name, value in one.items()}


def from_rank(source: int, value: T | None, group: ProcessGroup | None = None) -> T:
    """Broadcast `value` from rank `source`; the others' is ignored. A collective call."""
    values = [value]
    dist.broadcast_object_list(values, source, group=group)
    return cast(T, values[0])


def at_least_two(rank: Rank) -> None:
    """Raise ValueError for a world of one rank, in demos about communication."""
    if rank.world == 1:
        raise ValueError("ranks is 1, and one rank exchanges nothing: start at least 2")


def device_name(device: torch.device) -> str:
    """ "CPU", or the GPU's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
