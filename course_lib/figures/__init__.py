"""Results of theory and of demos in, matplotlib figures out; no pyplot, no shared state."""

from course_lib.figures.accumulation import batch_cost, window
from course_lib.figures.activations import activation_terms
from course_lib.figures.batches import one_batch
from course_lib.figures.curves import loss
from course_lib.figures.memory import consumers
from course_lib.figures.roofline import on_roofline
from course_lib.figures.samples import samples_by_rank
from course_lib.figures.sheet import Sheet
from course_lib.figures.timeline import timeline
from course_lib.figures.trace import overlap

__all__ = [
    "Sheet",
    "activation_terms",
    "batch_cost",
    "consumers",
    "loss",
    "on_roofline",
    "one_batch",
    "overlap",
    "samples_by_rank",
    "timeline",
    "window",
]
