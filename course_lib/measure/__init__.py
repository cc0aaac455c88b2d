"""What really happened: tensors, gradients, collectives, FLOPs, seconds."""

from course_lib.measure import (
    collective_time,
    collectives,
    copies,
    events,
    flops,
    gradients,
    graphs,
    interface,
    largest_batch,
    machine,
    overlap,
    peak,
    running,
    saved_tensors,
    tcp,
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
    "largest_batch",
    "machine",
    "overlap",
    "peak",
    "running",
    "saved_tensors",
    "tcp",
    "wire",
]
