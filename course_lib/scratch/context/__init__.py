"""Context parallelism: the sequence cut over ranks."""

from course_lib.scratch.context import block_attention, ring_attention, slices

__all__ = ["block_attention", "ring_attention", "slices"]
