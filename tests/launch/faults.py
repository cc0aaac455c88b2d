"""Ways to break rank 1, each in one function: what test_failures runs.

Ranks import this file: it is light.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from course_lib import launch


def _wait() -> None:
    import torch.distributed as dist

    dist.barrier()


def _is_broken() -> bool:
    return launch.init().rank == 1


def broken(fault: Callable[[], object], others: Callable[[], object] = _wait) -> Callable[[], None]:
    """What each rank does: rank 1 the fault, and then all of them what the others do."""

    def run() -> None:
        if launch.init().rank == 1:
            fault()
        others()

    return run


def sleep() -> None:
    time.sleep(600)


def nothing() -> tuple[int, str]:
    """No fault: an all-reduce, and how much torch.distributed checks."""
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total), dist.get_debug_level().name


def divide() -> float:
    return 1 / (1 - launch.init().rank)


def raises(error: BaseException) -> None:
    raise error


def die(number: signal.Signals) -> None:
    print("last words")
    os.kill(os.getpid(), number)


def leave_children_behind() -> None:
    import multiprocessing

    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    multiprocessing.Process(target=time.sleep, args=(60,)).start()
    os._exit(3)


def absent() -> None:
    import torch
    import torch.distributed as dist

    if _is_broken():
        time.sleep(600)
    dist.all_reduce(torch.ones(4))


def busy() -> None:
    while True:
        sum(range(100))


def locked() -> None:
    import ctypes

    ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the lock: no other Python thread runs


def one_too_many() -> None:
    from course_lib.launch import group

    group._PEERS_S = 0.5  # rank 0 stays that long for its peer
    if _is_broken():
        _wait()


class _Lost(RuntimeError):
    def __str__(self) -> str:
        other = Path(os.environ["COURSE_STORE"]).with_name("rank0.stack")
        while not other.stat().st_size:  # until the time of rank 0 is up
            time.sleep(0.01)
        return "Connection closed by peer"


def lose_the_peer_as_the_time_is_up() -> None:
    raise _Lost


def huge_tensor() -> None:
    import torch

    torch.empty(10**15)


def limited_memory() -> None:
    import resource

    with open("/proc/self/statm") as file:
        used_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + 2**28, resource.RLIM_INFINITY))
    bytearray(2**30)


def other_collective() -> None:
    import torch
    import torch.distributed as dist

    if _is_broken():
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.all_reduce(torch.ones(4))


def other_tensor(size: int = 4, dtype: str = "float32") -> Callable[[], None]:
    """An all-reduce of 4 numbers in fp32, on rank 1 of others."""

    def run() -> None:
        import torch
        import torch.distributed as dist

        mine = (size, dtype) if _is_broken() else (4, "float32")
        dist.all_reduce(torch.ones(mine[0], dtype=getattr(torch, mine[1])))

    return run


def unused_parameter() -> None:
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


def unsendable() -> object:
    return (number for number in range(3)) if _is_broken() else 0


def shout() -> None:
    while _is_broken():
        print("x" * 9_999)
