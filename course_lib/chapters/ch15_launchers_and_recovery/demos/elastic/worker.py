"""The rank program that torchrun starts and restarts: trains, saves, and resumes.

In the first attempt one rank kills itself, or its whole node. The demo `elastic` passes its
options as JSON.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from course_lib import launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.elastic.resumable import train
from course_lib.demos.shared.training import Training
from course_lib.launch.job import ATTEMPT_VARIABLE

_WATCH_S = 0.2


def main(folder: Path) -> None:
    """Run one attempt of one rank; rank 0 writes a line for every update."""
    job = json.loads((folder / "job.json").read_text())
    threading.Thread(target=_watch, args=(folder, os.getppid()), daemon=True).start()
    attempt, training = int(os.environ[ATTEMPT_VARIABLE]), Training(**job["training"])
    for done in train(training, folder, job["every"], attempt):
        if done == job["kill_after"] and launch.init().rank == job["kill_rank"]:
            _die_once(folder, job["whole_node"])


def _die_once(folder: Path, whole_node: bool) -> None:
    """Kill this rank by SIGKILL; with `whole_node` first its agent, so that all ranks there exit.

    Does nothing the second time: a file marks it, since a new agent counts attempts from 0 again.
    """
    died = folder / "died"
    if not died.exists():
        died.touch()
        if whole_node:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(folder: Path, agent: int) -> None:
    """Exit when the agent has died or the folder is gone.

    torchrun starts each rank in a new session, so nothing else would end it.
    """
    while os.getppid() == agent and folder.exists():
        time.sleep(_WATCH_S)
    os._exit(1)


if __name__ == "__main__":
    launch.program(main, Path(sys.argv[1]))
