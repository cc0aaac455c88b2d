"""Rank processes as their parent sees them: forked from a warm server, and ended for certain.

The server is the standard library's forkserver: a clean process, never a fork of the kernel.
Where there is none (Windows), each rank is a fresh process that imports torch for itself.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from course_lib.launch import rank as rank_program
from course_lib.launch.job import Folder

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext  # one is absent on Windows

_PRELOAD = "course_lib.launch.preload"
_END_S = 5.0  # a killed process is gone in milliseconds

_warm = False
_warming = threading.Lock()
# Starting a process makes the standard library poll all others, which is not thread-safe.
_process_lock = threading.Lock()

_FORKS = "forkserver" in multiprocessing.get_all_start_methods()
_context: "ForkServerContext | SpawnContext" = (
    multiprocessing.get_context("forkserver") if _FORKS else multiprocessing.get_context("spawn")
)


def warm_up() -> None:
    """Start the server in the background, so that the first `run` need not wait 3 s for torch."""
    with contextlib.suppress(OSError):  # `run` will meet the same error, and report it
        _start_server()


def wait_until_warm() -> None:
    """Return once the server can fork a rank at once; OSError if it cannot start."""
    global _warm
    with _warming:
        if _FORKS and not _warm:
            _start_server()
            _ask_for_nothing()
            _warm = True


def _start_server() -> None:
    if not _FORKS:
        return
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload([_PRELOAD])
    try:
        forkserver.ensure_running()
    except OSError as error:
        if "too long" not in str(error):
            raise
        raise OSError(
            "the path of the temporary folder is too long for a socket: set the environment"
            " variable TMPDIR to a shorter one such as /tmp, and start again"
        ) from error


def _ask_for_nothing() -> None:
    """Return when the server has imported everything and forked a process that does nothing.

    This does not use a Process: each of those imports the caller's script again.
    """
    from multiprocessing import forkserver

    answer, request = forkserver.connect_to_new_process([])
    os.close(request)
    os.read(answer, 1)
    os.close(answer)


class RankProcess:
    """One rank's process, in a process group of its own."""

    def __init__(self, folder: Folder, rank: int) -> None:
        self._process = _context.Process(
            target=rank_program.main, args=(str(folder.path), rank), name=f"rank {rank}"
        )
        with _process_lock:
            self._process.start()
        self.sentinel = self._process.sentinel

    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if a signal ended it."""
        with _process_lock:
            return self._process.exitcode

    def kill(self) -> None:
        """End the rank and all that it started; safe to repeat."""
        pid = self._process.pid
        try:
            if pid is not None and hasattr(os, "killpg"):
                os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nothing is left of the group, or the rank has not made it yet
        if self.exit_code() is None:
            self._process.kill()

    def wait(self) -> None:
        """Return when a killed rank is gone."""
        wait([self.sentinel], timeout=_END_S)
        with _process_lock:
            self._process.join(timeout=0)
            if self._process.exitcode is not None:
                self._process.close()
