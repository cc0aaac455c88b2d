"""Run a command with a small /dev/shm, as in a container, in its own namespace on Linux."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from course_lib import validation

_PROGRAM = 'mount -t tmpfs -o size="$0"m tmpfs /dev/shm && exec "$@"'


def obstacle() -> str:
    """The reason why `printed` cannot work on this machine, or ""."""
    if not shutil.which("unshare") or not os.path.isdir("/dev/shm"):
        return "it needs Linux, with unshare and /dev/shm"
    done = subprocess.run(_inside(1, ["true"]), capture_output=True, text=True)
    return "" if done.returncode == 0 else f"the system refuses it ({done.stderr.strip()})"


def printed(command: Sequence[str], size_mib: int = 64, timeout_s: float = 60.0) -> str:
    """Run `command` with a /dev/shm of `size_mib` MiB (64 is docker's default); returns its output.

    Other processes keep their /dev/shm. Raises ValueError for a bad size, CalledProcessError if the
    command fails or `obstacle()` is not "", and TimeoutExpired.
    """
    validation.whole("size_mib", size_mib, most=2**20)
    command = _inside(size_mib, command)
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
    return done.stdout


def _inside(size_mib: int, command: Sequence[str]) -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *user, *namespaces, "sh", "-c", _PROGRAM, str(size_mib), *command]
