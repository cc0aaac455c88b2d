"""How much memory processes use. Linux only."""

import os
from collections.abc import Collection, Iterable

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes; what they share is counted for each of them."""
    return sum(_PAGE_BYTES * int(_read(pid, "statm").split()[1] or 0) for pid in pids)


def own_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes, what several share divided among them; 10 ms for a large one."""
    lines = (line for pid in pids for line in _read(pid, "smaps_rollup").splitlines())
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def uses_more_than(pids: Collection[int], most_bytes: int) -> bool:
    """Whether these processes together use more memory than that."""
    return resident_bytes(pids) > most_bytes and own_bytes(pids) > most_bytes


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}") as file:
            return file.read()
    except OSError:
        return "0 0"  # it has just ended
