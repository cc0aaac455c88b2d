"""Finds what a launch may have left behind."""

import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from course_lib import launch

MARK = "COURSE_TEST_MARK"
BUSY_S = 60.0  # for what takes a second on a quiet machine
# Inherited by the server and by all that it forks, also by what outlives its parent.
os.environ[MARK] = uuid.uuid4().hex

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


def marked(mark: str) -> list[psutil.Process]:
    """The processes, zombies aside, that were started with this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def gone(processes: list[psutil.Process], within_s: float = BUSY_S) -> bool:
    return not psutil.wait_procs(processes, timeout=within_s)[1]


def folders_in(temporary: Path) -> list[Path]:
    """Folders of launches and of torchrun; torch's cache of compiled code is meant to stay."""
    kinds = ("course_launch_*", "course_nodes_*", "pymp-*", "torchelastic_*")
    return [folder for kind in kinds for folder in temporary.glob(kind)]


def no_folders_in(temporary: Path) -> None:
    """Nothing is left, or will be in a moment: a folder is removed behind the last rank."""
    wait_for(lambda: folders_in(temporary) == [])


def our_ranks() -> list[psutil.Process]:
    """What this test process started, but for the server."""
    me = psutil.Process()
    spared = {me.pid, *(child.pid for child in me.children())}
    return [process for process in marked(os.environ[MARK]) if process.pid not in spared]


def wait_for(condition: Callable[[], bool], within_s: float = BUSY_S) -> None:
    """Return when `condition()` holds; fails if it never does."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.02)


def limit_s() -> float:
    """A time limit that is going to pass: short, and longer where the machine is busy."""
    start_s = time.monotonic()
    launch.run(abs, 1, stream=False)
    return round(2 + 8 * (time.monotonic() - start_s), 1)
