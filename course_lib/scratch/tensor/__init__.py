"""Tensor and sequence parallelism: each matrix cut over ranks."""

from course_lib.scratch.tensor import layers, region, sequence, vocabulary

__all__ = ["layers", "region", "sequence", "vocabulary"]
