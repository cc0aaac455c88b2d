"""The processes of a launch's ranks, as the parent sees them: their exit codes, and their end."""

import contextlib
import json
import select
import signal
import subprocess
import time
from abc import ABC, abstractmethod

from course_lib.launch.descendants import kill
from course_lib.launch.fresh import fresh_python
from course_lib.launch.interrupts import Stop
from course_lib.launch.job import Folder
from course_lib.launch.keeper import END
from course_lib.launch.server import FORKS, keeper_for, refused

_END_S = 8.0  # a little longer than a keeper takes at most
_POLL_S = 0.03


class RankProcesses(ABC):
    """`exit_codes` by rank: None while it runs, minus the signal's number if a signal ended it.

    `pids` by rank: 0 until it is known.
    """

    def __init__(self, ranks: int) -> None:
        self.exit_codes: list[int | None] = [None] * ranks
        self.pids = [0] * ranks

    @abstractmethod
    def wait(self) -> None:
        """Return after 0.03 s, or as soon as a rank has ended."""

    @abstractmethod
    def end(self) -> None:
        """End the ranks and all that they started; safe to repeat."""


class KeptRanks(RankProcesses):
    """Ranks in the hands of a keeper. Raises OSError, with a remedy, if the system refuses them."""

    def __init__(self, folder: Folder, ranks: int, stop: Stop) -> None:
        super().__init__(ranks)
        self._said, self._keeper, self._alone = b"", 0, False
        self._control = keeper_for(folder.path, ranks, stop)

    def wait(self) -> None:
        if self._alone:
            return
        if select.select([self._control], [], [], _POLL_S)[0]:
            self._listen()
        if self._alone and not self._keeper:
            raise OSError(refused("the ranks", None))

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(END)
        until_s = time.monotonic() + _END_S
        while not self._alone and time.monotonic() < until_s:
            if select.select([self._control], [], [], _POLL_S)[0]:
                with contextlib.suppress(OSError):
                    self._listen()
        if not self._alone and self._keeper:
            kill([self._keeper])  # its ranks notice, and end themselves
        self._alone = True
        self._control.close()

    def _listen(self) -> None:
        try:
            new = self._control.recv(65_536)
        except ConnectionError:
            new = b""
        self._alone = not new
        *lines, self._said = (self._said + new).split(b"\n")
        for line in lines:
            self._heed(json.loads(line))
        if self._alone:  # the keeper was killed, and its ranks with it
            lost = -signal.SIGKILL
            self.exit_codes = [lost if code is None else code for code in self.exit_codes]

    def _heed(self, message: dict[str, int]) -> None:
        if "refused" in message:
            raise OSError(refused(f"rank {message['rank']}", message["refused"]))
        self._keeper = message.get("keeper", self._keeper)
        if "pid" in message:
            self.pids[message["rank"]] = message["pid"]
        if "code" in message:
            self.exit_codes[message["rank"]] = message["code"]


class FreshRanks(RankProcesses):
    """Ranks as new processes of this one, where there is no fork: each imports torch for itself."""

    def __init__(self, folder: Folder, ranks: int) -> None:
        super().__init__(ranks)
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(ranks):
            program = (
                f"from course_lib.launch.rank import main; main({str(folder.path)!r}, {rank}, 0)"
            )
            # Each ends when this pipe does, and this pipe when this process does.
            self._processes.append(subprocess.Popen(fresh_python(program), stdin=subprocess.PIPE))
            self.pids[rank] = self._processes[rank].pid

    def wait(self) -> None:
        time.sleep(_POLL_S)
        self.exit_codes = [process.poll() for process in self._processes]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()


def started(folder: Folder, ranks: int, stop: Stop) -> RankProcesses:
    """Start the ranks of the job in the folder."""
    return KeptRanks(folder, ranks, stop) if FORKS else FreshRanks(folder, ranks)
