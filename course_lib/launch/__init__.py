"""Starts ranks, streams their output, returns their results, and terminates every process.

    results = launch.run(function, *args, ranks=2)     # from a cell: results by rank
    python -m torch.distributed.run … -m course_lib.demos ddp     # the same program, by torchrun
    run_on_two_nodes("course_lib.demos", ["ddp"], mbit=200)     # by torchrun, behind a slow network

    run ── asks ──> server ── forks ──> supervisor ── forks ──> ranks
    (your kernel)   (has imported torch)  (one per launch: kills everything its ranks started)

Importing this package is cheap: torch is imported when a rank, or `init`, first needs it.
"""

from course_lib.launch.errors import RankFailed, Stopped
from course_lib.launch.group import (
    Rank,
    finish,
    init,
    outer_environment,
    private_environment,
    private_torchrun,
    program,
    report_step,
    torchrun_command,
)
from course_lib.launch.runner import run
from course_lib.launch.server import warm_up
from course_lib.launch.two_nodes import NodesFailed, run_on_two_nodes

__all__ = [
    "NodesFailed",
    "Rank",
    "RankFailed",
    "Stopped",
    "finish",
    "init",
    "outer_environment",
    "private_environment",
    "private_torchrun",
    "program",
    "report_step",
    "run",
    "run_on_two_nodes",
    "torchrun_command",
    "warm_up",
]
