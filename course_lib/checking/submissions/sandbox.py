"""Limits the resources of a submission, measures its memory, and restricts where it may write.

The Linux kernel's Landlock confines its writes to one folder, since 5.13, and its signals to its
own processes, since 6.12. It needs no privileges and cannot be undone. On other systems neither is
enforced.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from course_lib.validation import number, whole

# The time limit of a cell, and of grading one answer.
CELL_LIMIT_S = 120
_CELL_PART = 0.4
MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Limits for one notebook: seconds to run it, and again to grade it; memory, output, processes.

    `memory_gb` and `processes` are for all its processes together, and again for grading an answer;
    `output_mib` is what it may print. Raises ValueError for a value that is not above 0.
    """

    seconds: float = 300
    memory_gb: float = 4
    output_mib: int = 16
    processes: int = 100

    def __post_init__(self) -> None:
        number("limit_s", self.seconds, above=0)
        number("memory_gb", self.memory_gb, above=0)
        for name in ("output_mib", "processes"):
            whole(name, getattr(self, name))

    @property
    def cell_s(self) -> float:
        """Seconds for one cell, or for grading one answer, so that none can use up all the time."""
        return min(CELL_LIMIT_S, self.seconds * _CELL_PART)

    @property
    def memory_bytes(self) -> int:
        """`memory_gb` in bytes."""
        return int(self.memory_gb * 10**9)

    def obey(self) -> None:
        """Set rlimits for this process and its future children, as far as the system can."""
        import resource

        cpu_s = int(self.seconds * (os.cpu_count() or 1)) + 1  # in case the supervisor is killed
        for kind, most in (
            (resource.RLIMIT_DATA, self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.memory_bytes),
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_CORE, 0),
        ):
            # macOS does not implement some of them; keep a lower limit that the user has set.
            with contextlib.suppress(OSError, ValueError):
                before = resource.getrlimit(kind)[1]
                if before == resource.RLIM_INFINITY or before > most:
                    resource.setrlimit(kind, (most, most))


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident bytes of these processes (RSS); shared pages count for each of them."""
    return sum(_PAGE_BYTES * int(_read(pid, "statm").split()[1] or 0) for pid in pids)


def own_bytes(pids: Iterable[int]) -> int:
    """Proportional bytes of these processes (PSS): shared pages divided; 10 ms for a large one."""
    lines = (line for pid in pids for line in _read(pid, "smaps_rollup").splitlines())
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def uses_more_than(pids: Collection[int], most_bytes: int) -> bool:
    """Whether these processes together use more than `most_bytes` of memory."""
    return resident_bytes(pids) > most_bytes and own_bytes(pids) > most_bytes


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}") as file:
            return file.read()
    except OSError:
        return "0 0"  # the process has just exited


_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same number on every processor
_VERSION_OF_THE_KERNEL, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
# Rights to remove (two bits) and create (seven) files; then to move them between folders (ABI 2).
_CHANGES = sum(1 << bit for bit in range(4, 13)) | _WRITE_FILE
_REFER = 1 << 13
_SIGNALS = 1 << 1
# Devices that every program may write to: null, shared memory, GPUs.
_DEVICES = ("null", "zero", "shm", "nvidia*", "kfd", "dri")


def sandbox_version() -> int:
    """Landlock's ABI version on this system, which from 6 on restricts signals; 0 if none."""
    if sys.platform != "linux":
        return 0
    version: int = ctypes.CDLL(None).syscall(_CREATE, None, 0, _VERSION_OF_THE_KERNEL)
    return max(0, version)


def enter_sandbox(folder: Path) -> bool:
    """Forbid this process all writes outside `folder`; return whether that succeeded."""
    version = sandbox_version()
    if not version:
        return False
    system = ctypes.CDLL(None)
    changes = _CHANGES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rules = _rules(system, version, changes)
    if rules < 0:
        return False
    devices = [path for name in _DEVICES for path in Path("/dev").glob(name)]
    for path in (folder, *devices):
        _allow(system, rules, path, changes)
    system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    done: int = system.syscall(_RESTRICT, rules, 0)
    os.close(rules)
    return done == 0


def _rules(system: ctypes.CDLL, version: int, changes: int) -> int:
    """The descriptor of a Landlock ruleset that denies all of `changes`; -1 on failure."""
    fields = [changes] if version < 4 else [changes, 0]
    if version >= 6:
        fields.append(_SIGNALS)
    attributes = (ctypes.c_uint64 * len(fields))(*fields)
    descriptor: int = system.syscall(_CREATE, attributes, ctypes.sizeof(attributes), 0)
    return descriptor


def _allow(system: ctypes.CDLL, rules: int, path: Path, changes: int) -> None:
    access = changes if path.is_dir() else changes & (_WRITE_FILE | _TRUNCATE)
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        beneath = access.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        system.syscall(_ADD, rules, _PATH_BENEATH, beneath, 0)
        os.close(descriptor)
