"""The processes of a cluster: how they start, and which ones belong to it."""

import os
import subprocess
from pathlib import Path

from course_lib.chapters.ch15_launchers_and_recovery.cluster.configuration import MARK, Folder
from course_lib.launch.descendants import end_with_parent
from course_lib.launch.two_nodes import search_path

# Of a Slurm around this one, say the cluster on which a learner works.
_OF_SLURM = ("SLURM", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_", "MUNGE_")


def environment(folder: Folder) -> dict[str, str]:
    """What a daemon or a command needs to find this cluster and no other."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_SLURM)}
    return kept | {"SLURM_CONF": str(folder.configuration), "PATH": search_path()}


def start(folder: Folder, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
    """Start a daemon that ends with this process, and whose words go to log/NAME."""
    parent = os.getpid()
    with open(folder.log / name, "ab") as log:
        return subprocess.Popen(
            command,
            env=environment(folder) | {MARK: str(folder.path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: end_with_parent(parent),
        )


def last_line(path: Path, otherwise: str) -> str:
    """The last line of a file; `otherwise` where there is none."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else otherwise


def left_in(folder: Folder) -> list[int]:
    """The ids of processes that belong to this folder's cluster, its jobs included.

    Not the shell in which a learner has set SLURM_CONF: it has no SLURMD_NODENAME.
    """
    mark = f"{MARK}={folder.path}".encode()
    cluster = f"SLURM_CONF={folder.configuration}".encode()
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        about = _environment_of(pid)
        of_a_job = cluster in about and any(each.startswith(b"SLURMD_NODENAME=") for each in about)
        if pid != os.getpid() and (mark in about or of_a_job or _is_step_of(folder, pid)):
            found.append(pid)
    return found


def steps_in(folder: Folder) -> list[int]:
    """The ids of the processes by which this cluster's nodes watch over their jobs' steps."""
    return [pid for pid in left_in(folder) if _is_step_of(folder, pid)]


def _is_step_of(folder: Folder, pid: int) -> bool:
    """Whether it is a slurmstepd of this cluster; it wipes its environment, but writes a log."""
    try:
        if Path(f"/proc/{pid}/comm").read_text() != "slurmstepd\n":
            return False
        files = [os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")]
    except OSError:  # it has ended, or is somebody else's
        return False
    return any(file.startswith(f"{folder.log}/") for file in files)


def is_running(pid: int, words: tuple[str, ...]) -> bool:
    """Whether that process is alive and was started with all of these words."""
    try:
        said = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return set(words) <= set(said)


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is somebody else's
        return []
