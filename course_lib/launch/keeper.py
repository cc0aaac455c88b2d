"""The keeper of one launch: forks its ranks, reports how they end, and ends all that they started.

One socket joins it with the parent, which can say "end". If the parent closes the socket or dies
without a word, nobody wants the launch any more: its folder goes as well.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
from typing import NoReturn

from course_lib.launch import rank as rank_program
from course_lib.launch.descendants import adopt_orphans, end_all

END = b"end"


def main(control: socket.socket, folder: str, ranks: int) -> NoReturn:
    """Keep `ranks` ranks of the launch in `folder` until the parent no longer wants them."""
    os.setpgid(0, 0)
    adopt_orphans()
    keeper = _Keeper(control, folder)
    try:
        keeper.start(ranks)
        wanted = keeper.follow()
    finally:
        end_all(keeper.started)
    if not wanted:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # the parent reads the end of the socket: nothing is left


class _Keeper:
    def __init__(self, control: socket.socket, folder: str) -> None:
        self.started: dict[int, int] = {}  # ranks by process id
        self._control, self._folder = control, folder
        # Ranks read from this pipe, which nobody writes to: it ends when this process does.
        self._lifeline, self._held = os.pipe()
        self._ended = wake_up_when_a_child_ends()

    def start(self, ranks: int) -> None:
        """Fork all ranks; if the system refuses one, say so."""
        self._say(keeper=os.getpid())
        for rank in range(ranks):
            try:
                pid = os.fork()
            except OSError as error:
                self._say(rank=rank, refused=error.errno or 0)
                return
            if pid == 0:
                self._become(rank)
            self.started[pid] = rank
            self._say(rank=rank, pid=pid)

    def _become(self, rank: int) -> NoReturn:
        try:
            forget_children()
            os.close(self._held)
            self._control.close()
            rank_program.main(self._folder, rank, self._lifeline)
        finally:
            os._exit(1)

    def follow(self) -> bool:
        """Tell the parent of each rank that ends, until it says "end"; False if it is gone."""
        while True:
            ready = select.select([self._control.fileno(), self._ended], [], [])[0]
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._reap()
            if self._control.fileno() in ready:
                with contextlib.suppress(ConnectionError):
                    return self._control.recv(16) == END
                return False

    def _reap(self) -> None:
        """Only the ranks: an adopted orphan may be wanted until the end."""
        for pid, rank in self.started.items():
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._say(rank=rank, code=os.waitstatus_to_exitcode(status))

    def _say(self, **message: int) -> None:
        with contextlib.suppress(OSError):  # the parent is gone: `follow` will see it
            self._control.sendall(json.dumps(message).encode() + b"\n")


def wake_up_when_a_child_ends() -> int:
    """A descriptor that can be read from after a child of this process has ended."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def forget_children() -> None:
    """Undo `wake_up_when_a_child_ends` after a fork."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
