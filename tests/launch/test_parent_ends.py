"""A parent that is killed, or only wants to leave, holds nothing and leaves nothing behind."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import BUSY_S, needs_signals, no_folders_in, our_ranks, wait_for

DEAF = """
import ctypes, os, signal
from course_lib import launch

def do_not_listen():
    rank = launch.init().rank
    print("started", flush=True)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    ctypes.PyDLL(None).sleep(600)  # no other Python thread of the rank runs

launch.run(do_not_listen, timeout_s=600)  # a script needs no `if __name__ == "__main__":`
"""

TALKATIVE = """
from course_lib import launch

def talk():
    for number in range(20_000):
        print(number)

launch.run(talk)
"""

IMPATIENT = """
from course_lib import launch

launch.warm_up()
"""


_started: list[subprocess.Popen[str]] = []


@pytest.fixture
def temporary(nothing_left: None) -> Iterator[Path]:
    """The scripts' own temporary folder."""
    with tempfile.TemporaryDirectory(prefix="course_test_", dir="/tmp") as folder:
        yield Path(folder)
        for parent in _started:
            parent.kill()
            parent.wait()
        _started.clear()


def start(script: str, temporary: Path) -> subprocess.Popen[str]:
    """Run the script in a process of its own."""
    (temporary / "script.py").write_text(script)
    parent = subprocess.Popen(
        [sys.executable, temporary / "script.py"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _started.append(parent)
    return parent


@needs_signals
def test_ranks_that_do_not_listen_end_after_a_killed_parent(temporary: Path) -> None:
    parent = start(DEAF, temporary)
    assert {parent.stdout.readline() for _ in range(2)} == {
        "[rank 0] started\n", "[rank 1] started\n",
    }  # fmt: skip
    assert len(our_ranks()) >= 3  # two ranks and the server
    parent.kill()
    parent.communicate()
    wait_for(lambda: our_ranks() == [])  # their keeper ends them
    no_folders_in(temporary)


@needs_signals
def test_a_pipe_that_is_closed_early_ends_the_launch(temporary: Path) -> None:
    parent = start(TALKATIVE, temporary)
    parent.stdout.readline()
    parent.stdout.close()  # as `| head -1` does
    assert parent.wait(timeout=BUSY_S) != 0
    assert "BrokenPipeError" in parent.stderr.read()  # to its end: nobody holds it any more
    wait_for(lambda: our_ranks() == [])
    no_folders_in(temporary)


def test_warming_up_keeps_nobody_waiting(temporary: Path) -> None:
    parent = start(IMPATIENT, temporary)
    assert parent.communicate(timeout=BUSY_S) == ("", "")  # to the end of both pipes
    wait_for(lambda: our_ranks() == [])
