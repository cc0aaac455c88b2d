"""A cluster that is up: its commands, its nodes, its jobs, and the end of a node."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.chapters.ch15_launchers_and_recovery.cluster.configuration import (
    NODES,
    PAPER,
    Folder,
)
from course_lib.chapters.ch15_launchers_and_recovery.cluster.processes import (
    environment,
    is_running,
    left_in,
)
from course_lib.launch.descendants import descendants, kill
from course_lib.validation import choice

KEEPER, NODE = f"{__package__}.keeper", f"{__package__}.node"
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
        words = (NODE, str(self.folder.path), name)
        while running := [pid for pid in left_in(self.folder) if is_running(pid, words)]:
            kill([*running, *descendants(running[0])])
            time.sleep(_POLL_S)
