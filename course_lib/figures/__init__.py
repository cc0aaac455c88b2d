"""Results of theory and of demos in, matplotlib figures out; no pyplot, no shared state."""

from course_lib.figures import accumulation, batches, curves, memory, samples, style, svg
from course_lib.figures.sheet import Sheet

__all__ = ["Sheet", "accumulation", "batches", "curves", "memory", "samples", "style", "svg"]
