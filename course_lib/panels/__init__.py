"""Sliders → theory → figure. Each function returns a panel to be named last in a cell."""

from course_lib.panels.accumulation_panel import accumulation
from course_lib.panels.activations_panel import activations
from course_lib.panels.batches_panel import batches
from course_lib.panels.buckets_panel import buckets
from course_lib.panels.collectives_panel import collectives
from course_lib.panels.critical_batch_panel import critical_batch
from course_lib.panels.experts_panel import experts
from course_lib.panels.fsdp_panel import fsdp_memory
from course_lib.panels.memory_panel import GPU_MEMORY_BYTES, memory
from course_lib.panels.panel import Panel
from course_lib.panels.pipeline_panel import pipeline
from course_lib.panels.planner_panel import planner
from course_lib.panels.roofline_panel import roofline
from course_lib.panels.tp_reach_panel import tp_reach
from course_lib.panels.zero_panel import zero

__all__ = [
    "GPU_MEMORY_BYTES",
    "Panel",
    "accumulation",
    "activations",
    "batches",
    "buckets",
    "collectives",
    "critical_batch",
    "experts",
    "fsdp_memory",
    "memory",
    "pipeline",
    "planner",
    "roofline",
    "tp_reach",
    "zero",
]
