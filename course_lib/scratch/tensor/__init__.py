"""Tensor and sequence parallelism: each matrix cut over ranks."""

from course_lib.scratch.tensor import (
    layers,
    overlapped,
    region,
    sequence,
    vocabulary,
)

__all__ = ["layers", "overlapped", "region", "sequence", "vocabulary"]
