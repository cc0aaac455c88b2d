"""Lets this process and all that it starts write in few places only, and signal nobody outside.

The Linux kernel's Landlock does it, since 5.13 for files and since 6.12 for signals. It needs no
rights and cannot be undone. Elsewhere there is no fence.
"""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same number on every processor
_VERSION_OF_THE_KERNEL, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
# Removing (two bits), making (seven), then moving between folders, which version 2 knows.
_CHANGES = sum(1 << bit for bit in range(4, 13)) | _WRITE_FILE
_REFER = 1 << 13
_SIGNALS = 1 << 1
# What every program may write to: the void, shared memory, GPUs.
_DEVICES = ("null", "zero", "shm", "nvidia*", "kfd", "dri")


def fences() -> int:
    """The version of the system's fence: 6 and more keep signals in as well; 0 when it has none."""
    if sys.platform != "linux":
        return 0
    version: int = ctypes.CDLL(None).syscall(_CREATE, None, 0, _VERSION_OF_THE_KERNEL)
    return max(0, version)


def fence(folder: Path) -> bool:
    """Refuse this process all writing outside of `folder`; whether the system could do it."""
    version = fences()
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
    """A set of rules that allows none of `changes` yet."""
    fields = [changes] if version < 4 else [changes, 0]
    if version >= 6:
        fields.append(_SIGNALS)
    attributes = (ctypes.c_uint64 * len(fields))(*fields)
    made: int = system.syscall(_CREATE, attributes, ctypes.sizeof(attributes), 0)
    return made


def _allow(system: ctypes.CDLL, rules: int, path: Path, changes: int) -> None:
    access = changes if path.is_dir() else changes & (_WRITE_FILE | _TRUNCATE)
    with contextlib.suppress(OSError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        beneath = access.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        system.syscall(_ADD, rules, _PATH_BENEATH, beneath, 0)
        os.close(place)
