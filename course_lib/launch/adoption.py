"""What a process group that another launcher made says about this process, or why it is refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def check_environment(rank: int, world: int) -> None:
    """Raise RuntimeError if the environment describes another group than the one that exists."""
    said = (os.environ.get("RANK", str(rank)), os.environ.get("WORLD_SIZE", str(world)))
    if said != (str(rank), str(world)):
        raise RuntimeError(
            f"the process group that exists has {world} ranks, of which this is rank {rank}, and "
            f"the environment says RANK={said[0]} and WORLD_SIZE={said[1]}: destroy that group "
            "before launch.init(), or unset both variables"
        )


def device_and_backend(configuration: str) -> tuple[torch.device, str]:
    """Where a group's tensors are, and what sends them, from `dist.get_backend_config()`.

    A GPU where NCCL serves it and this machine has one, else the CPU by gloo. Raises RuntimeError
    for a group that serves neither.
    """
    import torch

    backends = dict(part.split(":", 1) for part in configuration.split(","))
    if backends.get("cuda") == "nccl" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device()), "nccl"
    if backends.get("cpu") == "gloo":
        return torch.device("cpu"), "gloo"
    raise RuntimeError(
        f"the process group that exists sends by {configuration}, and the course's programs need "
        "gloo, or nccl and a GPU for each rank: make it with one of these, or destroy it before "
        "launch.init()"
    )


def local_rank(rank: int) -> int:
    """LOCAL_RANK; where the launcher did not set it, all ranks are taken to be on one machine."""
    return int(os.environ.get("LOCAL_RANK", rank))
