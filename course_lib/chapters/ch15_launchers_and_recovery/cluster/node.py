"""One node of the cluster: the parent of its slurmd, and of all that its jobs start.

python -m course_lib.chapters.ch15_launchers_and_recovery.cluster.node FOLDER n1
"""

import os
import signal
import sys
from pathlib import Path

from course_lib.chapters.ch15_launchers_and_recovery.cluster.configuration import Folder, program
from course_lib.chapters.ch15_launchers_and_recovery.cluster.processes import start
from course_lib.launch.descendants import adopt_orphans, listen_for


def main(folder: Folder, name: str) -> int:
    """Be the node until its slurmd ends; returns slurmd's exit code."""
    adopt_orphans()
    signals = listen_for(signal.SIGCHLD)
    command = [str(program("slurmd")), "-D", "-f", str(folder.configuration), "-N", name]
    slurmd = start(folder, name, command)
    while slurmd.poll() is None:
        os.read(signals, 64)
        _reap(slurmd.pid)
    return slurmd.returncode


def _reap(spare: int) -> None:
    """Forget the children that have ended, but for one, which is waited for elsewhere."""
    while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if ended.si_pid == spare:
            return
        os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    sys.exit(main(Folder(Path(sys.argv[1])), sys.argv[2]))
