"""Counts the all-reduces of DistributedDataParallel and their bytes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile


@dataclass
class BucketLog:
    """One entry per all-reduce, in the order of sending."""

    bucket_bytes: list[int] = field(default_factory=list)

    @property
    def all_reduces(self) -> int:
        """How many all-reduces were sent."""
        return len(self.bucket_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes handed to all-reduce, on this rank."""
        return sum(self.bucket_bytes)


def log_buckets(model: DistributedDataParallel) -> BucketLog:
    """Write down every gradient bucket that `model` sends from now on.

    Uses DDP's communication hook with torch's default behind it, so nothing
    else changes. A DDP model takes one hook in its life: torch raises
    RuntimeError for a second.
    """
    log = BucketLog()

    def hook(group: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        log.bucket_bytes.append(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, hook)
    return log


def profiled_all_reduces(step: Callable[[], object]) -> int:
    """All-reduces that torch's profiler sees while `step()` runs."""
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        step()
    return sum(
        event.count
        for event in trace.key_averages()
        if event.key.endswith(":all_reduce")
    )
