"""What ranks tell each other, and what they are called."""

from collections.abc import Mapping
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib.launch import Rank

T = TypeVar("T")


def world() -> ProcessGroup:
    """The group of all ranks; RuntimeError outside of one."""
    group = dist.group.WORLD
    if group is None:
        raise RuntimeError("there is no process group yet: call launch.init() first")
    return group


def from_all_ranks(value: T) -> list[T]:
    """What every rank gives, by rank. Tensors must be on the CPU; all ranks call this together."""
    everyone: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return cast(list[T], everyone)


def joined(own: Mapping[str, T]) -> dict[str, T]:
    """What all ranks have, by name, in one table; of what several have, the last one's."""
    return {name: value for one in from_all_ranks(own) for name, value in one.items()}


def from_rank(source: int, value: T | None, group: ProcessGroup | None = None) -> T:
    """What one rank gives; the others' `value` does not matter. All ranks call this together."""
    found = [value]
    dist.broadcast_object_list(found, source, group=group)
    return cast(T, found[0])


def at_least_two(rank: Rank) -> None:
    """Raise ValueError where a rank is alone, in a demo of what ranks exchange."""
    if rank.world == 1:
        raise ValueError("ranks is 1, and one rank exchanges nothing: start at least 2")


def device_name(device: torch.device) -> str:
    """ "CPU", or the GPU's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
