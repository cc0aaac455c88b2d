"""A two-node Slurm cluster on this machine, for learners and tests. Needs no root.

    cluster.up()                          # stays until cluster.down(); also `course cluster up`
    with cluster.running() as slurm:      # a temporary cluster, removed at the end of the block
        slurm.run(["sbatch", "--test-only", script])

    up ── starts ──> keeper ──> munged, slurmctld, and a process for each of n1 and n2
                     (a supervisor: kills all their descendants, including daemonized ones)

A node is a process that adopts the orphans of its slurmd: killing it and its descendants simulates
a power failure of the machine. All files are in one folder, which only its owner may enter.
"""

from course_lib.chapters.ch15_launchers_and_recovery.cluster.configuration import obstacle
from course_lib.chapters.ch15_launchers_and_recovery.cluster.life import down, running, status, up
from course_lib.chapters.ch15_launchers_and_recovery.cluster.scenario import (
    Event,
    Requeued,
    batch_script,
    recorded,
    requeue,
)
from course_lib.chapters.ch15_launchers_and_recovery.cluster.slurm import Job, Slurm

__all__ = [
    "Event",
    "Job",
    "Requeued",
    "Slurm",
    "batch_script",
    "down",
    "obstacle",
    "recorded",
    "requeue",
    "running",
    "status",
    "up",
]
