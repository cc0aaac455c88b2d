"""Starts new Python processes; finds and kills all descendants of a process. Complete on Linux.

A process that leaves its group or outlives its parent is still a descendant: the nearest ancestor
that is a subreaper becomes its parent. On other systems only the ranks' process groups are killed.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path


def fresh_python(program: str) -> list[str]:
    """The command line of a new Python that runs `program` with this process's `sys.path`."""
    path = [str(Path(entry).absolute()) for entry in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {program}"]


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_END_S = 5.0  # a killed process is gone in milliseconds, unless it waits for a broken disk
_POLL_S = 0.002


def adopt_orphans() -> None:
    """Make this process a subreaper: it becomes the parent of descendants orphaned below it."""
    _ask_linux(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` exits; exit now if that has happened."""
    if _ask_linux(_PR_SET_PDEATHSIG, signal.SIGKILL) and os.getppid() != parent:
        os._exit(1)


def _ask_linux(option: int, value: int) -> bool:
    """Call prctl(option, value) on this process; False on systems other than Linux."""
    if sys.platform != "linux":
        return False
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    return True


def listen_for(*numbers: signal.Signals) -> int:
    """A file descriptor that yields the number of each signal received, one byte per signal."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def children() -> list[int]:
    """The process ids of this process's children; empty where there is no /proc."""
    if sys.platform != "linux":
        return []
    return [pid for pid in _processes() if _parent(pid) == os.getpid()]


def descendants(pid: int) -> list[int]:
    """The ids of all descendants of process `pid`; empty where there is no /proc."""
    if sys.platform != "linux":
        return []
    below: dict[int, list[int]] = {}
    for each in _processes():
        below.setdefault(_parent(each), []).append(each)
    result = below.pop(pid, [])
    for each in result:  # the list grows during the loop: a breadth-first search
        result += below.pop(each, ())
    return result


def _processes() -> Iterable[int]:
    return map(int, filter(str.isdigit, os.listdir("/proc")))


def _parent(pid: int) -> int:
    """The id of the parent of `pid`; -1 if the process has just exited."""
    fields = _stat(pid)
    return int(fields[1]) if fields else -1


def processor_s(pid: int) -> float | None:
    """CPU time that a process has used, user plus system, in seconds; None if unknown."""
    if not (fields := _stat(pid)):
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from field 3 on (proc_pid_stat(5)); empty if unreadable."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()  # a name may hold spaces and brackets
    except OSError:
        return []


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL, which also ends stopped processes; ignore those that have already exited."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_all(groups: Iterable[int]) -> None:
    """Kill these process groups, then every descendant; return when none is left, or after 5 s."""
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
