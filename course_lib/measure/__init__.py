"""Measurements: bytes of tensors, gradients, collectives, FLOPs, seconds."""

import os

# torch's profiler prints two lines at every start and stop unless this is set
# before its first use.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from course_lib.measure import gradients, memory_over_time, peak, times, wire

__all__ = ["gradients", "memory_over_time", "peak", "times", "wire"]
