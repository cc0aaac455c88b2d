"""Starting and stopping the cluster."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from course_lib.chapters.ch15_launchers_and_recovery.cluster import configuration
from course_lib.chapters.ch15_launchers_and_recovery.cluster.configuration import (
    MARK,
    Folder,
    learners,
)
from course_lib.chapters.ch15_launchers_and_recovery.cluster.slurm import (
    KEEPER,
    Slurm,
    environment,
    last_line,
    left_in,
)
from course_lib.launch.descendants import kill
from course_lib.problem import Problem

_START_S = 60.0  # on an idle machine 2 s
_END_S = 20.0
_POLL_S = 0.1


def up() -> Slurm:
    """Return the learner's cluster with both nodes ready, after starting whatever is down.

    Remains of a crash are cleaned up first. Raises Problem if Slurm is not available or does not
    come up; a cluster that fails to start leaves nothing behind.
    """
    if reason := configuration.obstacle():
        raise Problem(reason)
    folder = learners()
    with _alone(folder):
        slurm = Slurm(folder)
        if slurm.keeper() is None:
            _clean(folder)
            _start(folder, follow=False)
        else:
            slurm.start_nodes()
            _wait_until_ready(slurm)
    return slurm


def status() -> Slurm | None:
    """The learner's cluster, or None if it is down."""
    slurm = Slurm(learners())
    return None if slurm.keeper() is None else slurm


def down() -> bool:
    """Stop the learner's cluster and its jobs; returns False if there was none.

    Processes and folders left by a crash are removed as well.
    """
    folder = learners()
    with _alone(folder):
        existed = folder.path.exists()
        _end(folder)
    return existed


@contextlib.contextmanager
def running() -> Iterator[Slurm]:
    """Run a temporary cluster, separate from the learner's, for the length of the block.

    It ends even if this process is killed. Raises the same Problems as `up`.
    """
    if reason := configuration.obstacle():
        raise Problem(reason)
    # Not in TMPDIR, whose path may be too long for Unix sockets.
    folder = Folder(Path(f"/tmp/course_cluster_{secrets.token_hex(4)}"))
    keeper = _start(folder, follow=True)
    try:
        yield Slurm(folder)
    finally:
        _end(folder)
        keeper.communicate()


@contextlib.contextmanager
def _alone(folder: Folder) -> Iterator[None]:
    """Hold a lock that excludes any other `up` or `down` of this user; waits for it."""
    if not folder.path.parent.exists():
        yield
        return
    import fcntl  # Windows does not have it

    descriptor = os.open(folder.path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _start(folder: Folder, follow: bool) -> "subprocess.Popen[bytes]":
    """Start the keeper and return it once both nodes are ready; clean up if that fails."""
    folder.make()
    try:
        configuration.write(folder)
        mode = "follow" if follow else "stay"
        with open(folder.log / "keeper", "wb") as log:
            # A new session shields it from Ctrl-C and from the end of the terminal.
            keeper = subprocess.Popen(
                [sys.executable, "-m", KEEPER, str(folder.path), mode],
                env=environment(folder) | {MARK: str(folder.path)},
                stdin=subprocess.PIPE if follow else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        folder.keeper.write_text(str(keeper.pid))
        _wait_until_ready(Slurm(folder), keeper)
    except BaseException:  # including KeyboardInterrupt
        _end(folder)
        raise
    return keeper


def _wait_until_ready(slurm: Slurm, keeper: "subprocess.Popen[bytes] | None" = None) -> None:
    until_s = time.monotonic() + _START_S
    while not slurm.ready():
        if keeper and keeper.poll() is not None:
            raise Problem(f"the cluster did not start, {_last_words(slurm.folder)}")
        if time.monotonic() > until_s:
            said = ", ".join(f"{node} is {state}" for node, state in slurm.nodes().items())
            raise Problem(
                f"after {_START_S:g} s {said or 'slurmctld is silent'}: run `course cluster down`, "
                "then up again"
            )
        time.sleep(_POLL_S)


def _last_words(folder: Folder) -> str:
    """The keeper's last line of output, which says which daemon ended, and why."""
    said = last_line(folder.log / "keeper", "its keeper said nothing")
    if "Address already in use" in said:
        return f"another program took its port meanwhile: try again ({said})"
    return said


def _end(folder: Folder) -> None:
    """Ask the keeper to stop the cluster, then kill whatever is left and remove the folder."""
    slurm, until_s = Slurm(folder), time.monotonic() + _END_S
    if keeper := slurm.keeper():
        os.kill(keeper, signal.SIGTERM)
        while slurm.keeper() and time.monotonic() < until_s:
            time.sleep(_POLL_S)
    _clean(folder)


def _clean(folder: Folder) -> None:
    """Kill all processes left of the cluster, and remove its folder."""
    until_s = time.monotonic() + _END_S
    while left := left_in(folder):
        if time.monotonic() > until_s:
            raise Problem(f"processes {left} of the cluster do not end: restart the machine")
        kill(left)
        time.sleep(_POLL_S)
    shutil.rmtree(folder.path, ignore_errors=True)
