"""Results of theory and of demos in, matplotlib figures out; no pyplot, no shared state."""

from course_lib.figures.accumulation import batch_cost, window
from course_lib.figures.batches import one_batch
from course_lib.figures.curves import loss
from course_lib.figures.memory import consumers
from course_lib.figures.samples import samples_by_rank
from course_lib.figures.sheet import Sheet

__all__ = [
    "Sheet",
    "batch_cost",
    "consumers",
    "loss",
    "one_batch",
    "samples_by_rank",
    "window",
]
