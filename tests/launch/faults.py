"""Ways to break a rank, each in one function: what test_faults and test_sabotage run."""

import os
import signal
import sys
import time

from course_lib import launch


def _wait() -> None:
    import torch.distributed as dist

    dist.barrier()


def kill(bad: int) -> None:
    if launch.init().rank == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    _wait()


def hang(bad: int) -> None:
    if launch.init().rank == bad:
        time.sleep(600)
    _wait()


def raise_error(bad: int) -> None:
    if launch.init().rank == bad:
        raise ValueError("sabotage")
    _wait()


def leave(bad: int) -> None:
    if launch.init().rank == bad:
        os._exit(7)
    _wait()


def sys_exit(bad: int) -> None:
    if launch.init().rank == bad:
        sys.exit(7)
    _wait()


def huge_tensor(bad: int) -> None:
    import torch

    if launch.init().rank == bad:
        torch.empty(10**15)
    _wait()


def limited_memory(bad: int) -> None:
    import resource

    if launch.init().rank == bad:
        with open("/proc/self/statm") as file:
            used_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + 2**28, resource.RLIM_INFINITY))
        bytearray(2**30)
    _wait()


def other_collective(bad: int) -> None:
    import torch
    import torch.distributed as dist

    if launch.init().rank == bad:
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.all_reduce(torch.ones(4))


def other_shape(bad: int) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1000 if launch.init().rank == bad else 10))


def other_type(bad: int) -> None:
    import torch
    import torch.distributed as dist

    kind = torch.float64 if launch.init().rank == bad else torch.float32
    dist.all_reduce(torch.ones(4, dtype=kind))


def absent(bad: int) -> None:
    import torch
    import torch.distributed as dist

    if launch.init().rank == bad:
        time.sleep(600)
    dist.all_reduce(torch.ones(4))


def unused_parameter(bad: int) -> None:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.forgotten = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = DistributedDataParallel(Forgetful())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def nothing(bad: int) -> int:
    """No fault: an all-reduce."""
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)
