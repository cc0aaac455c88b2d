"""A running cluster: its commands, nodes, jobs and processes, and how to kill a node."""

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

KEEPER = f"{__package__}.keeper"  # the module of the supervisors, of the cluster and of each node
_READY = ("idle", "mixed", "allocated", "completing")
_POLL_S = 0.1


@dataclass(frozen=True)
class Job:
    """A row of `squeue`: `state` is such as PENDING, and `reason` says why the job waits."""

    number: int
    name: str
    state: str
    reason: str


@dataclass(frozen=True)
class Slurm:
    """A cluster, identified by its folder."""

    folder: Folder

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a Slurm command: SLURM_CONF, and no variables of another cluster."""
        return environment(self.folder)

    def run(
        self, command: Sequence[str], timeout_s: float = 60.0
    ) -> "subprocess.CompletedProcess[str]":
        """Run one of Slurm's commands on this cluster, and capture its exit code and output.

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
        """The pid of the keeper, the cluster's supervisor; None if it is not running."""
        try:
            pid = int(self.folder.keeper.read_text())
        except (OSError, ValueError):
            return None
        return pid if is_running(pid, (KEEPER, str(self.folder.path))) else None

    def nodes(self) -> dict[str, str]:
        """Slurm's state of each node, such as idle; empty if slurmctld does not answer."""
        said = self.run(
            ["sinfo", "--Node", "--noheader", "--partition=debug", "--format=%N %T"]
        ).stdout
        return dict(line.split() for line in said.splitlines())

    def version(self) -> str:
        """Slurm's version, such as 22.05.8."""
        return self.run(["sinfo", "--version"]).stdout.split()[-1]

    def ready(self) -> bool:
        """Whether all nodes are up, idle or busy."""
        states = self.nodes()
        return len(states) == len(NODES) and all(state in _READY for state in states.values())

    def jobs(self) -> list[Job]:
        """The jobs in `squeue`: pending, running, or just ended."""
        said = self.run(["squeue", "--noheader", "--sort=i", "--format=%A|%T|%r|%j"]).stdout
        rows = (line.split("|", 3) for line in said.splitlines())  # a name may hold any character
        return [Job(int(number), name, state, reason) for number, state, reason, name in rows]

    def would_start(self, script: "os.PathLike[str]", partition: str = PAPER) -> str:
        """When and where Slurm would start the script, by `sbatch --test-only`; submits nothing.

        The partition is 2048 nodes of 8 GPUs that exist only on paper, or the two real nodes
        ("debug"). Raises ValueError with Slurm's message for a script that it rejects.
        """
        command = ["sbatch", "--test-only", f"--partition={partition}", os.fspath(script)]
        answer = self.run(command)
        words = answer.stderr.strip()
        if answer.returncode:
            raise ValueError(f"Slurm refuses {os.fspath(script)}: {words}")
        return words

    def start_nodes(self) -> None:
        """Ask the keeper to start the nodes that are down."""
        if keeper := self.keeper():
            os.kill(keeper, signal.SIGUSR1)

    def kill_node(self, name: str) -> None:
        """Simulate a power failure: kill the node's slurmd, its steps, and their descendants.

        Slurm is not notified. Raises ValueError for a node that does not exist.
        """
        choice("node", name, NODES)
        words = (KEEPER, str(self.folder.path), name)
        while running := [pid for pid in left_in(self.folder) if is_running(pid, words)]:
            kill([*running, *descendants(running[0])])
            time.sleep(_POLL_S)


# --- processes --------------------------------------------------------------------------------

# Prefixes of variables that another Slurm may have set, such as the cluster the learner works on.
_OF_SLURM = ("SLURM", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_", "MUNGE_")


def environment(folder: Folder) -> dict[str, str]:
    """Environment variables by which a daemon or a command finds this cluster and no other."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_SLURM)}
    return kept | {"SLURM_CONF": str(folder.configuration), "PATH": search_path()}


def start(folder: Folder, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
    """Start a daemon that ends with this process, and writes its output to log/NAME."""
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
    """The last line of a file, or `otherwise` if it is missing or empty."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else otherwise


def left_in(folder: Folder) -> list[int]:
    """The pids of all processes of this folder's cluster, including its jobs.

    A shell in which a learner has set SLURM_CONF does not count: it has no SLURMD_NODENAME.
    """
    mark = f"{MARK}={folder.path}".encode()
    cluster = f"SLURM_CONF={folder.configuration}".encode()
    pids = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        env = _environment_of(pid)
        of_a_job = cluster in env and any(each.startswith(b"SLURMD_NODENAME=") for each in env)
        if pid != os.getpid() and (mark in env or of_a_job or _is_step_of(folder, pid)):
            pids.append(pid)
    return pids


def steps_in(folder: Folder) -> list[int]:
    """The pids of this cluster's slurmstepd processes, which manage the steps of its jobs."""
    return [pid for pid in left_in(folder) if _is_step_of(folder, pid)]


def _is_step_of(folder: Folder, pid: int) -> bool:
    """Whether `pid` is a slurmstepd of this cluster, by its open log: its environment is empty."""
    try:
        if Path(f"/proc/{pid}/comm").read_text() != "slurmstepd\n":
            return False
        files = [os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")]
    except OSError:  # it has ended, or belongs to another user
        return False
    return any(file.startswith(f"{folder.log}/") for file in files)


def is_running(pid: int, words: tuple[str, ...]) -> bool:
    """Whether process `pid` is alive and its command line has all of these arguments."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return set(words) <= set(arguments)


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return []
