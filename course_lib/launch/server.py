"""Rank processes as their parent sees them: a warm server to fork them from, and a sure end.

The server is the standard library's forkserver: a clean process, never a fork of the kernel.
Where there is none (Windows), each rank is a fresh process that imports torch for itself.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

from course_lib.launch import rank as rank_program
from course_lib.launch.job import Folder

_PRELOAD = "course_lib.launch.preload"
_END_S = 5.0  # a killed process is gone in milliseconds

_warming: threading.Thread | None = None
_warming_lock = threading.Lock()
# Starting a process makes the standard library poll all others: not safe from several threads.
_process_lock = threading.Lock()

_FORKS = "forkserver" in multiprocessing.get_all_start_methods()
_context = multiprocessing.get_context("forkserver" if _FORKS else "spawn")


def warm_up() -> None:
    """Start the server in the background, so that the first `run` need not wait 3 s for torch."""
    global _warming
    with _warming_lock:
        if _warming is None and _FORKS:
            _warming = threading.Thread(target=_start_server, daemon=True)
            _warming.start()


def wait_until_warm() -> None:
    """Return once the server can fork a rank at once."""
    warm_up()
    if _warming is not None:
        _warming.join()


def _start_server() -> None:
    from multiprocessing import forkserver

    _context.set_forkserver_preload([_PRELOAD])
    # If this fails, the launch that waits for it fails likewise, and says so to its caller.
    with contextlib.suppress(OSError, EOFError):
        # Not a Process: each of those imports the caller's script once more.
        answer, request = forkserver.connect_to_new_process([])
        os.close(request)  # nothing to do for the new process: it ends
        os.read(answer, 1)  # comes when the server has imported all and forked
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
            if hasattr(os, "killpg"):
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
