"""What really happened: tensors, gradients, collectives, FLOPs, seconds."""

import os

# torch's profiler prints two lines at every start and stop, unless it was told
# before its first one.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from course_lib.measure import (
    collective_time,
    collectives,
    flops,
    gradients,
    graphs,
    largest_batch,
    machine,
    memory_over_time,
    overlap,
    peak,
    saved_tensors,
    storages,
    wire,
)

__all__ = [
    "collective_time",
    "collectives",
    "copies",
    "events",
    "flops",
    "gradients",
    "graphs",
    "interface",
    "lanes",
    "largest_batch",
    "machine",
    "memory_history",
    "memory_over_time",
    "overlap",
    "peak",
    "running",
    "saved_tensors",
    "sharing",
    "storages",
    "tcp",
    "wire",
]
