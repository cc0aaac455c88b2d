"""Sliders → theory → figure. Each function returns a panel to be named last in a cell."""

from course_lib.panels.accumulation_panel import accumulation
from course_lib.panels.activations_panel import activations
from course_lib.panels.batches_panel import batches
from course_lib.panels.critical_batch_panel import critical_batch
from course_lib.panels.memory_panel import GPU_MEMORY_BYTES, memory
from course_lib.panels.panel import Panel
from course_lib.panels.roofline_panel import roofline

__all__ = [
    "GPU_MEMORY_BYTES",
    "Panel",
    "accumulation",
    "activations",
    "batches",
    "critical_batch",
    "memory",
    "roofline",
]
