"""Finds and ends whatever a process has started, however it tried to get away. Complete on Linux.

A process that leaves its group or outlives its parent is still a descendant: the nearest ancestor
that adopts orphans becomes its parent. Elsewhere only the process groups of the ranks are ended.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

_PR_SET_CHILD_SUBREAPER = 36
_END_S = 5.0  # a killed process is gone in milliseconds, unless it waits for a broken disk
_POLL_S = 0.002


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parents end."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """The ids of this process's children; none where there is no /proc."""
    if sys.platform != "linux":
        return []
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_ours(pid)]


def _is_ours(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            after_name = file.read().rpartition(b")")[2]  # a name may hold spaces and brackets
    except OSError:
        return False  # it has just ended
    return int(after_name.split()[1]) == os.getpid()


def kill(pids: Iterable[int]) -> None:
    """SIGKILL, which also ends a process that is stopped; those that are gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_all(groups: Iterable[int]) -> None:
    """End these process groups, and then every descendant; returns when none is left."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    until_s = time.monotonic() + _END_S
    while time.monotonic() < until_s:
        kill(children())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_POLL_S)
