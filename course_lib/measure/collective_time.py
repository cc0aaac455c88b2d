"""How long a collective takes: all ranks start together, the last one counts.

As in nccl-tests, the time of a call is that of the slowest rank.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def collective_seconds(
    call: Callable[[], object], repeats: int, device: torch.device
) -> float:
    """The fastest of `repeats` calls, the same number on every rank.

    The fastest, because other work on the machine can only add to a time.
    """
    times = [_one(call, device) for _ in range(repeats)]
    slowest = torch.tensor(times, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.min())


def _one(call: Callable[[], object], device: torch.device) -> float:
    dist.barrier()
    _finish(device)
    start = time.perf_counter()
    call()
    _finish(device)
    return time.perf_counter() - start


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
