"""The parent of a launch: starts the ranks, watches them, and ends every one of them."""

import linecache
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from course_lib.launch.job import Folder, Job
from course_lib.launch.limits import (
    check_arguments,
    check_memory,
    threads_per_rank,
)
from course_lib.launch.running import RunningRank
from course_lib.launch.server import wait_until_warm
from course_lib.launch.verdict import first_cause

_POLL_S = 0.03
_GRACE_S = 0.5  # after a failure: other ranks may report too, and prove to be the cause
_LEAVE_S = 5.0  # after the last result: time for all ranks to leave the process group
_STACK_S = 1.0  # after the deadline: time for each rank to write down where it is


def run(
    function: Callable[..., Any],
    *args: Any,
    ranks: int = 2,
    timeout_s: float = 120.0,
    stream: bool = True,
    check_collectives: bool = False,
) -> list[Any]:
    """Call `function(*args)` on every rank inside a process group; return the results by rank.

    The function may come from a cell. What ranks print is shown as it comes, unless not `stream`.
    `check_collectives` makes ranks compare each collective before they start it (slow): a mismatch
    then names who called what. With it, torch 2.13 crashes in DistributedDataParallel.

    No rank is left when it returns or raises. Raises RankFailed, with what happened first, if a
    rank raises, dies, or returns nothing within `timeout_s` seconds; TypeError or ValueError for
    bad arguments; MemoryError or OSError, with a remedy, where this machine does not allow it.
    """
    check_arguments(function, ranks, timeout_s)
    check_memory(ranks)
    call = _packed(function, args)
    wait_until_warm()
    with tempfile.TemporaryDirectory(prefix="course_launch_", ignore_cleanup_errors=True) as path:
        folder = Folder(Path(path))
        deadline_s = time.monotonic() + timeout_s
        folder.write_job(_job(call, ranks, timeout_s, deadline_s, check_collectives))
        return _results(_started_and_ended(folder, ranks, deadline_s, stream), timeout_s)


def _started_and_ended(
    folder: Folder, ranks: int, deadline_s: float, stream: bool
) -> list[RunningRank]:
    """Start the ranks, follow them, and leave none of them alive."""
    started: list[RunningRank] = []
    try:
        for rank in range(ranks):
            started.append(RunningRank(folder, rank, stream))
        _watch(started, deadline_s)
    except BaseException:
        # Before the ranks are ended: a restart interrupts the kernel and soon kills it. Ranks live
        # only as long as the folder, so they end even if the kernel can no longer end them.
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    finally:
        _end(started)
    return started


def _packed(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps((function, args))
    except Exception as error:
        raise TypeError(
            f"function or one of its arguments cannot be sent to the ranks ({error}):"
            " create inside the function what cannot be copied"
        ) from error
    return packed


def _job(
    call: bytes, ranks: int, timeout_s: float, deadline_s: float, check_collectives: bool
) -> Job:
    # Cells are not files: without their source a rank's traceback would show no code.
    cells = {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None
    }
    threads = threads_per_rank(ranks)
    environment = dict(os.environ)
    if check_collectives:
        environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    return Job(call, ranks, threads, timeout_s, deadline_s, environment, cells)


def _watch(ranks: list[RunningRank], deadline_s: float) -> None:
    """Return when all ranks ended, or soon after the first failure, last result, or deadline."""
    until_s = deadline_s + _STACK_S
    settled = False
    while running := [rank for rank in ranks if not rank.ended]:
        now_s = time.monotonic()
        if now_s > until_s:
            return
        wait([rank.process.sentinel for rank in running], timeout=_POLL_S)
        for rank in ranks:
            rank.update()
        if any(rank.failed and rank.output.too_long for rank in ranks):
            return
        if not settled and any(rank.failed for rank in ranks):
            until_s, settled = min(until_s, now_s + _GRACE_S), True
        elif not settled and all(rank.returned for rank in ranks):
            until_s, settled = now_s + _LEAVE_S, True


def _end(ranks: list[RunningRank]) -> None:
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.process.wait()


def _results(ranks: list[RunningRank], timeout_s: float) -> list[Any]:
    """The results by rank; raises RankFailed if a rank has none."""
    for rank in ranks:
        rank.output.show_rest()
    reports = [rank.report for rank in ranks]
    results = [report.result for report in reports if report and not report.failed]
    if len(results) == len(ranks):
        return [pickle.loads(result) for result in results]
    failed = [rank for rank in ranks if rank.failed]
    if not failed:
        failed = [rank for rank in ranks if not rank.returned]  # time was up
    returned = [rank.rank for rank in ranks if rank.returned]
    raise first_cause([rank.failure() for rank in failed], returned, timeout_s)
