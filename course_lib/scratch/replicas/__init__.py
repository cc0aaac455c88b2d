"""Data parallelism: a copy of the model on each device, gradients averaged."""

from course_lib.scratch.replicas import (
    buckets,
    data_parallel,
    ddp,
    local_sgd,
    ring_sum,
    spread,
    sync_norm,
)

__all__ = [
    "buckets",
    "data_parallel",
    "ddp",
    "local_sgd",
    "ring_sum",
    "spread",
    "sync_norm",
]
