"""Processes that share one core: how much longer each takes than alone.

Time is not wall-clock time: only seconds in which the core ran one of these
processes count, so other programs on the machine do not matter.
"""

import json
import os
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Sequence

# Logs (wall-clock time, processor seconds used so far) until its work is done.
_WORKER = """
import json, os, sys, time
core, nice, work_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.sched_setaffinity(0, {core})
os.nice(nice)
print("ready", flush=True)
sys.stdin.readline()
start, log = time.process_time(), []
while True:
    had = time.process_time() - start
    log.append((time.monotonic(), had))
    if had >= work_s:
        break
    for _ in range(3000):
        pass
print(json.dumps(log))
"""
Log = list[tuple[float, float]]


def can_share() -> bool:
    """Whether processes can be pinned to one core; only on Linux."""
    return hasattr(os, "sched_setaffinity")


def slowdowns(work_s: Sequence[float], nice: Sequence[int]) -> list[float]:
    """Slowdown of each process when all share one core: time over time alone.

    `work_s`: processor seconds that each needs. `nice`: its niceness, 0 to 19.
    Raises ValueError for empty lists or lists of different lengths.
    """
    if len(work_s) != len(nice) or not work_s:
        raise ValueError(
            f"work_s has {len(work_s)} numbers and nice {len(nice)}: give one "
            "of each for every process"
        )
    core = min(os.sched_getaffinity(0))
    logs = _run([[str(core), str(n), str(s)] for s, n in zip(work_s, nice, strict=True)])
    return [(_clock(logs, log[-1][0]) - _clock(logs, log[0][0])) / log[-1][1] for log in logs]


def _run(arguments: list[list[str]]) -> list[Log]:
    """Run one worker per list of arguments, all at the same time; their logs."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for words in arguments
    ]
    try:
        for worker in workers:
            assert worker.stdout and worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin
            worker.stdin.write("\n")
            worker.stdin.flush()
        return [json.loads(worker.communicate(timeout=60)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _clock(logs: list[Log], time: float) -> float:
    """Processor seconds that all workers together had used by `time`."""
    return sum(_had(log, time) for log in logs)


def _had(log: Log, time: float) -> float:
    """Processor seconds of one worker by `time`, interpolated in its log."""
    if time <= log[0][0]:
        return log[0][1]
    if time >= log[-1][0]:
        return log[-1][1]
    index = bisect_right([when for when, _ in log], time)
    (before, used), (after, used_after) = log[index - 1], log[index]
    return used + (used_after - used) * (time - before) / (after - before)
