"""The keeper's side of the judge: answers wait here, are judged in turn, and become verdicts."""

import contextlib
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from course_lib.checking.submissions import judge
from course_lib.checking.submissions.judge import Court
from course_lib.launch.descendants import kill

_MOST_WAITING = 100  # a submission that hands over more is not listened to until some are judged


@dataclass(frozen=True)
class Handed:
    """An answer: the name of its file, or why the submission could not write one."""

    id: str
    file: str
    refused: str = ""


class Bench:
    """`verdicts` by exercise, (status, reason): that on the last answer, since that one counts."""

    def __init__(self, court: Court) -> None:
        self.verdicts: dict[str, tuple[str, str]] = {}
        self._court = court
        self._waiting: deque[Handed] = deque()
        self._judged: Handed | None = None
        self._said = b""
        self._call()

    @property
    def full(self) -> bool:
        """Whether no more answers should come."""
        return len(self._waiting) >= _MOST_WAITING

    @property
    def idle(self) -> bool:
        """Whether all answers are judged."""
        return not self._waiting and self._judged is None

    def add(self, handed: Handed) -> None:
        """Have an answer judged when its turn comes."""
        self._waiting.append(handed)
        self._next()

    def listen(self) -> None:
        """Take what the judge says; if it has died, call another one."""
        try:
            said = self._socket.recv(65_536)
        except ConnectionError:
            said = b""
        *lines, self._said = (self._said + said).split(b"\n")
        for line in lines:
            verdict = json.loads(line)
            self._done(verdict["status"], verdict["reason"])
        if not said:
            self._call_another("the judge of its answer was killed")
        self._next()

    def replace(self, judging: Iterable[int], why: str) -> None:
        """End the judge and those processes below it; the answer at hand gets no verdict."""
        for pid in judging:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)  # a whole group at once: none forks on
        kill([self.pid, *judging])
        self._call_another(why)
        self._next()

    def _call_another(self, why: str) -> None:
        self._socket.close()
        self._done("stopped", why)
        self._call()

    def dismiss(self, why: str) -> None:
        """Leave what is not judged yet without a verdict."""
        for handed in [self._judged, *self._waiting]:
            if handed:
                self.verdicts[handed.id] = "stopped", f"its answer was not judged: {why}"

    def _done(self, status: str, reason: str) -> None:
        if self._judged:
            self.verdicts[self._judged.id] = status, reason
        self._judged = None

    def _next(self) -> None:
        while self._waiting and self._judged is None:
            self._judged = self._waiting.popleft()
            if self._judged.refused:
                self._done("fail", f"the answer cannot be handed over: {self._judged.refused}")
                continue
            request = {"id": self._judged.id, "answer": self._judged.file}
            with contextlib.suppress(OSError):  # `listen` will see that it is gone
                self._socket.sendall(json.dumps(request).encode() + b"\n")

    def _call(self) -> None:
        """Fork a judge from this process, which has never run any of the submission."""
        self._socket, theirs = socket.socketpair()
        self._said, keeper = b"", os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._socket.close()
                judge.main(theirs, self._court, keeper)
            finally:
                os._exit(1)
        theirs.close()

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()
