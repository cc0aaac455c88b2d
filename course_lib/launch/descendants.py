"""Starts new Python processes; finds and ends whatever a process has started. Complete on Linux.

A process that leaves its group or outlives its parent is still a descendant: the nearest ancestor
that adopts orphans becomes its parent. Elsewhere only the process groups of the ranks are ended.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path


def fresh_python(program: str) -> list[str]:
    """A new Python that runs `program`, and finds modules where this one does."""
    path = [str(Path(entry).absolute()) for entry in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {program}"]


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_END_S = 5.0  # a killed process is gone in milliseconds, unless it waits for a broken disk
_POLL_S = 0.002


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parents end."""
    _ask_linux(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends; at once if that is not this one."""
    if _ask_linux(_PR_SET_PDEATHSIG, signal.SIGKILL) and os.getppid() != parent:
        os._exit(1)


def _ask_linux(option: int, value: int) -> bool:
    """Set one of the process's options; False on another system, which has none of these."""
    if sys.platform != "linux":
        return False
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    return True


def listen_for(*numbers: signal.Signals) -> int:
    """A descriptor from which the numbers of arriving signals can be read, a byte each."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def children() -> list[int]:
    """The ids of this process's children; none where there is no /proc."""
    if sys.platform != "linux":
        return []
    return [pid for pid in _processes() if _parent(pid) == os.getpid()]


def descendants(pid: int) -> list[int]:
    """The ids of all processes below that one; none where there is no /proc."""
    if sys.platform != "linux":
        return []
    below: dict[int, list[int]] = {}
    for each in _processes():
        below.setdefault(_parent(each), []).append(each)
    found = below.pop(pid, [])
    for each in found:  # which grows meanwhile
        found += below.pop(each, ())
    return found


def _processes() -> Iterable[int]:
    return map(int, filter(str.isdigit, os.listdir("/proc")))


def _parent(pid: int) -> int:
    """The id of its parent; -1 for a process that has just ended."""
    fields = _stat(pid)
    return int(fields[1]) if fields else -1


def processor_s(pid: int) -> float | None:
    """The processor time that a process has used; None where that is not known."""
    if not (fields := _stat(pid)):
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[bytes]:
    """What /proc/PID/stat says after the name (proc_pid_stat(5), from field 3); empty without."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()  # a name may hold spaces and brackets
    except OSError:
        return []


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
