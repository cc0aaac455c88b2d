"""A cluster that is up: its processes, commands, nodes and jobs, and the end of a node."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.chapters.ch15_launchers_and_recovery.cluster.configuration import (
    MARK,
    NODES,
    PAPER,
    Folder,
)
from course_lib.launch.descendants import descendants, end_with_parent, kill
from course_lib.launch.two_nodes import search_path
from course_lib.validation import choice

KEEPER = f"{__package__}.keeper"  # the module that keeps a cluster, or one of its nodes
_READY = ("idle", "mixed", "allocated", "completing")
_POLL_S = 0.1


@dataclass(frozen=True)
class Job:
    """A job as `squeue` knows it: `state` in Slurm's words, in capitals, and why it waits."""

    number: int
    name: str
    state: str
    reason: str


@dataclass(frozen=True)
class Slurm:
    """A cluster by its folder."""

    folder: Folder

    @property
    def environment(self) -> dict[str, str]:
        """For `subprocess`: SLURM_CONF, and nothing of another Slurm."""
        return environment(self.folder)

    def run(
        self, command: Sequence[str], timeout_s: float = 60.0
    ) -> "subprocess.CompletedProcess[str]":
        """Run one of Slurm's commands on this cluster; its exit code and what it printed.

        Raises subprocess.TimeoutExpired.
        """
        return subprocess.run(
            list(command),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def keeper(self) -> int | None:
        """The process that keeps it; None if there is none."""
        try:
            pid = int(self.folder.keeper.read_text())
        except (OSError, ValueError):
            return None
        return pid if is_running(pid, (KEEPER, str(self.folder.path))) else None

    def nodes(self) -> dict[str, str]:
        """The state of each node in Slurm's word, such as idle; empty if slurmctld is silent."""
        said = self.run(
            ["sinfo", "--Node", "--noheader", "--partition=debug", "--format=%N %T"]
        ).stdout
        return dict(line.split() for line in said.splitlines())

    def version(self) -> str:
        """Such as 22.05.8."""
        return self.run(["sinfo", "--version"]).stdout.split()[-1]

    def ready(self) -> bool:
        """Whether all nodes take jobs, or are busy with one."""
        states = self.nodes()
        return len(states) == len(NODES) and all(state in _READY for state in states.values())

    def jobs(self) -> list[Job]:
        """The jobs that wait, run, or ended a moment ago."""
        said = self.run(["squeue", "--noheader", "--sort=i", "--format=%A|%T|%r|%j"]).stdout
        rows = (line.split("|", 3) for line in said.splitlines())  # a name may hold any character
        return [Job(int(number), name, state, reason) for number, state, reason, name in rows]

    def would_start(self, script: "os.PathLike[str]", partition: str = PAPER) -> str:
        """Slurm's answer to a script that is not submitted: when and where it would start.

        By `sbatch --test-only`, on 2048 nodes of 8 GPUs that exist only on paper, or on the two
        real ones ("debug"). Raises ValueError with Slurm's words for a script that it refuses.
        """
        command = ["sbatch", "--test-only", f"--partition={partition}", os.fspath(script)]
        answer = self.run(command)
        words = answer.stderr.strip()
        if answer.returncode:
            raise ValueError(f"Slurm refuses {os.fspath(script)}: {words}")
        return words

    def start_nodes(self) -> None:
        """Have the keeper start the nodes that are down."""
        if keeper := self.keeper():
            os.kill(keeper, signal.SIGUSR1)

    def kill_node(self, name: str) -> None:
        """Pull the plug of a node: its slurmd, its steps, and all that they started.

        Slurm is told nothing. Raises ValueError for a node that does not exist.
        """
        choice("node", name, NODES)
        words = (KEEPER, str(self.folder.path), name)
        while running := [pid for pid in left_in(self.folder) if is_running(pid, words)]:
            kill([*running, *descendants(running[0])])
            time.sleep(_POLL_S)


# --- its processes ----------------------------------------------------------------------------

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
