"""Layers and a link whose times are set, not measured: they sleep. For DDP on two ranks."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[Tensor]]
Intervals = list[tuple[float, float]]
BACKWARD_S, LINK_S = 0.020, 0.030  # of one layer
LAYER_BYTES = 4 * 256 * 256
_NAPS: Intervals = []


class Nap(torch.autograd.Function):
    """Changes nothing; its backward pass takes 20 ms."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        start = time.perf_counter()
        time.sleep(BACKWARD_S)
        _NAPS.append((start, time.perf_counter()))
        return gradient


class Layer(nn.Linear):
    """256 × 256 numbers, 262,144 bytes; its backward pass sleeps."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Nap.apply(super().forward(x))
        return y


class SleepingLink:
    """Carries one bucket at a time, in a thread of its own: a real all-reduce, then sleep."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.carried: Intervals = []
        self.group = dist.new_group()  # DDP has messages of its own

    def hook(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """What DDP calls with a full bucket; it returns a promise of the mean."""
        arrived: torch.futures.Future[Tensor] = torch.futures.Future()
        self.thread.submit(self.carry, bucket.buffer(), arrived)
        return arrived

    def carry(self, flat: Tensor, arrived: torch.futures.Future[Tensor]) -> None:
        """All-reduce `flat`, and sleep until 30 ms have passed for each layer's bytes."""
        start = time.perf_counter()
        dist.all_reduce(flat.div_(dist.get_world_size()), group=self.group)
        lasts_s = LINK_S * flat.nbytes / LAYER_BYTES
        time.sleep(max(0, start + lasts_s - time.perf_counter()))
        self.carried.append((start, time.perf_counter()))
        arrived.set_result(flat)


def backward_passes(
    cap_mb: float,
    count: int = 4,
    around: Callable[[Hook], Hook] = lambda hook: hook,
    **options: Any,
) -> list[tuple[float, Intervals, Intervals]]:
    """For each backward pass of DDP: its seconds, and when layers and link were at work."""
    launch.init()
    layers = [Layer(256, 256, bias=False) for _ in range(6)]
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=cap_mb, **options)
    link, passes = SleepingLink(), []
    ddp.register_comm_hook(None, around(link.hook))
    for _ in range(count):
        loss = ddp(torch.ones(1, 256)).sum()
        _NAPS.clear()
        link.carried.clear()
        start = time.perf_counter()
        loss.backward()
        seconds = time.perf_counter() - start
        naps, carried = (
            [(a - start, b - start) for a, b in intervals] for intervals in (_NAPS, link.carried)
        )
        passes.append((seconds, naps, carried))
    return passes
