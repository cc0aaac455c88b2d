"""A rehearsal: torch's own parallel code on one rank out of many, without the others.

    result = rehearse(Job(shape, recipe, Layout(dp=128, tp=8, zero_stage=3)), rank=1023)
    print(result.report())

`program` is one update of a transformer of any size by `fully_shard` and `parallelize_module`, in a
world in which only one rank exists; `expected` what the theory says and the name of each
difference; `result` the two side by side.
"""

from course_lib.chapters.ch15_launchers_and_recovery.rehearsal.result import (
    Line,
    Rehearsal,
    rehearse,
)

__all__ = ["Line", "Rehearsal", "rehearse"]
