"""Checks that `run` makes before it starts a process: arguments, memory, threads."""

import os
from pathlib import Path

from course_lib import validation

MAX_RANKS = 64
# Measured on Linux: the server with torch imported, and what a small DDP rank adds to it.
SERVER_BYTES = 300 * 10**6
RANK_BYTES = 100 * 10**6
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def check_arguments(function: object, ranks: int, timeout_s: float) -> None:
    """Raise TypeError or ValueError with one sentence that names the argument and the remedy."""
    if not callable(function):
        raise TypeError(
            f"function must be callable, got {type(function).__name__} {function!r}:"
            " pass the function itself, and its arguments after it"
        )
    validation.whole("ranks", ranks, most=MAX_RANKS)
    validation.number("timeout_s", timeout_s, above=0)


def check_memory(ranks: int) -> None:
    """Raise MemoryError if `ranks` ranks would not fit, before the OOM killer ends one."""
    available_bytes = available_memory_bytes()
    needed_bytes = SERVER_BYTES + ranks * RANK_BYTES
    if available_bytes is not None and available_bytes < needed_bytes:
        raise MemoryError(
            f"ranks={ranks} needs about {needed_bytes / 1e9:.1f} GB of memory and"
            f" {available_bytes / 1e9:.1f} GB is free: close other programs, shut down other"
            " kernels, or pass fewer ranks"
        )


def available_memory_bytes() -> int | None:
    """Bytes available to new processes on this machine or in this container; None if unknown."""
    known = [_machine_bytes(), _container_bytes()]
    return min((value for value in known if value is not None), default=None)


def _machine_bytes() -> int | None:
    if not _MEMINFO.exists():
        return None
    return _fields(_MEMINFO).get("MemAvailable:", 0) * 1024 or None


def _container_bytes() -> int | None:
    """Bytes left under the cgroup's memory limit, counting its file cache as free."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used_bytes = int((_CGROUP / "memory.current").read_text())
        cache_bytes = _fields(_CGROUP / "memory.stat").get("inactive_file", 0)
    except (OSError, ValueError):
        return None
    return int(limit) - used_bytes + cache_bytes if limit.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Lines `name number …` as {name: number}."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}


def threads_per_rank(ranks: int) -> int:
    """This process's cores divided by `ranks`, at least 1, at most OMP_NUM_THREADS if set.

    More threads than cores made DDP 8 times slower.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    most = int(asked) if asked.isdecimal() else cores
    return max(1, min(cores // ranks, most))
