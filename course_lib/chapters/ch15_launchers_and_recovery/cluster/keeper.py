"""The supervisor processes of a cluster: the keeper, which starts all daemons, and one per node.

    python -m course_lib.chapters.ch15_launchers_and_recovery.cluster.keeper FOLDER stay|follow
    python -m course_lib.chapters.ch15_launchers_and_recovery.cluster.keeper FOLDER n1

The keeper ends all descendants of its daemons. SIGTERM stops the cluster, SIGUSR1 starts the nodes
that are down. In mode `follow` it also stops when its standard input is closed, so that a test's
cluster never outlives the test. A node is the parent of its slurmd, and adopts its jobs' orphans.
"""

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from course_lib.chapters.ch15_launchers_and_recovery.cluster.configuration import (
    NODES,
    Folder,
    program,
)
from course_lib.chapters.ch15_launchers_and_recovery.cluster.slurm import KEEPER, last_line, start
from course_lib.launch.descendants import adopt_orphans, end_all, listen_for

_POLL_S = 0.01


def keep(folder: Folder, follows: bool) -> int:
    """Run the cluster until it is stopped; returns 0, or 1 if a daemon exited.

    In the latter case the folder is kept, for its logs.
    """
    adopt_orphans()
    signals = listen_for(signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
    watched = [signals, sys.stdin.fileno()] if follows else [signals]
    try:
        failed = _Keeper(folder).keep(watched)
    finally:
        end_all([])
    if failed:
        return 1
    shutil.rmtree(folder.path, ignore_errors=True)
    return 0


class _Keeper:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        configuration = str(folder.configuration)
        # --force: munged otherwise rejects a folder that other users cannot enter.
        munged = [str(program("munged")), "--foreground", "--force", f"--socket={folder.socket}"]
        munged += [f"--key-file={folder.key}", f"--pid-file={folder.path / 'munged.pid'}"]
        munged += [f"--seed-file={folder.path / 'munged.seed'}", "--origin=127.0.0.1"]
        slurmctld = [str(program("slurmctld")), "-D", "-f", configuration]
        self._running = {"munged": start(folder, "munged", munged)}
        self._wait_for_the_socket()
        self._running["slurmctld"] = start(folder, "slurmctld", slurmctld)
        self._start_nodes()

    def _wait_for_the_socket(self) -> None:
        while not self._folder.socket.exists() and self._running["munged"].poll() is None:
            time.sleep(_POLL_S)

    def _start_nodes(self) -> None:
        for name in NODES:
            if name not in self._running or self._running[name].poll() is not None:
                node = [sys.executable, "-m", KEEPER, str(self._folder.path)]
                self._running[name] = start(self._folder, name, [*node, name])

    def keep(self, watched: list[int]) -> bool:
        """Wait; return False when the cluster is stopped, True when one of its daemons exited.

        A node ended by SIGKILL simulates a machine without power, which the cluster survives.
        """
        while True:
            ready = select.select(watched, [], [])[0]
            if watched[0] not in ready:
                return False
            for number in os.read(watched[0], 64):
                if number == signal.SIGTERM:
                    return False
                if number == signal.SIGUSR1:
                    self._start_nodes()
            for name, process in self._running.items():
                code = process.poll()
                if code is not None and not (name in NODES and code == -signal.SIGKILL):
                    said = last_line(self._folder.log / name, "it said nothing")
                    print(f"{name} {_ended(code)}: {said}", flush=True)
                    return True


def _ended(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"


def be_node(folder: Folder, name: str) -> int:
    """Run slurmd as node `name` and reap orphans until it ends; returns slurmd's exit code."""
    adopt_orphans()
    signals = listen_for(signal.SIGCHLD)
    command = [str(program("slurmd")), "-D", "-f", str(folder.configuration), "-N", name]
    slurmd = start(folder, name, command)
    while slurmd.poll() is None:
        os.read(signals, 64)
        _reap(slurmd.pid)
    return slurmd.returncode


def _reap(spare: int) -> None:
    """Reap the children that have ended, except the pid `spare`, which is waited for elsewhere."""
    while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if ended.si_pid == spare:
            return
        os.waitpid(ended.si_pid, 0)


def main(path: str, what: str) -> int:
    """Run the keeper of the cluster in folder `path`, or its node named `what`."""
    folder = Folder(Path(path))
    return be_node(folder, what) if what in NODES else keep(folder, what == "follow")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
