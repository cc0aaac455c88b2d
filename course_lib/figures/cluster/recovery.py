"""A job that lost a node: what it spent its time with until it was done."""

from collections.abc import Mapping

from course_lib.figures.engines.lanes import lanes
from course_lib.figures.paper.drawing import Drawing

# Each phase from one event to another, with what it means.
_PHASES = (
    ("waits in the queue", "submitted", "started", "waits"),
    ("starts torch", "started", "training", "starts"),
    ("trains", "training", "killed", "training"),
    ("hangs: nobody misses the node yet", "killed", "requeued", "hangs"),
    ("waits in the queue again", "requeued", "restarted", "waits"),
    ("starts torch again", "restarted", "resumed", "starts"),
    ("trains, from the checkpoint on", "resumed", "done", "training"),
)


def requeue_timeline(times: Mapping[str, float]) -> Drawing:
    """One row for each phase, on one scale of seconds.

    `times` has seconds since the submission for submitted, started, training, killed, requeued,
    restarted, resumed and done, as `cluster.requeue().times`. Raises ValueError for a phase that
    ends before it begins.
    """
    rows = {
        f"{words}, {times[end] - times[start]:.1f} s": [(what, times[start], times[end])]
        for words, start, end, what in _PHASES
    }
    return lanes(rows, f"{times['done']:.1f} s with the loss of a node")
