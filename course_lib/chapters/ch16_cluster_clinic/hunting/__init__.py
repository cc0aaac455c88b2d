"""The hunt: one of three real ranks is broken; find which, and how, from what they print.

    case = hunt(3)                                     # starts the ranks, and then the clock
    case.answer(rank=1, cause="straggler")
    case.doctor()                                      # what `course diagnose` says, and how soon

A case is a fault of the demo `faults` in a program that says what it does (`demos.faults.watched`);
the frames and lines that would tell the fault are shown as those of an invented train.py.
"""

from course_lib.chapters.ch16_cluster_clinic.hunting.case import Case, hunt
from course_lib.checking.hunts import next_case, table

__all__ = ["Case", "hunt", "next_case", "table"]
