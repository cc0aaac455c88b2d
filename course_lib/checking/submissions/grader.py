"""The grader: a process that no submission ran in. Each answer is graded by a fresh fork of it.

`Queue` is the supervisor's side: answers wait there, are graded in turn, and become verdicts.
"""

import contextlib
import json
import linecache
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from course_lib.checking.exercises import Wrong, find
from course_lib.checking.grading import STATUSES, Verdict, grade
from course_lib.checking.submissions.answers import ANSWERS, LARGEST_BYTES, unpacked
from course_lib.checking.submissions.cells import cell_name
from course_lib.checking.submissions.sandbox import Limits, enter_sandbox
from course_lib.launch.descendants import end_with_parent, kill

_LONGEST = 65_536
# Kinds of exercises that never ask for a function: an answer is rebuilt without running code.
DATA_KINDS = ("calculate", "predict")


@dataclass(frozen=True)
class Grading:
    """What the grader needs to know of a grading."""

    folder: Path
    limits: Limits
    environment: dict[str, str]  # the submission's
    cells: tuple[str, ...]
    torch: bool


def serve(requests: socket.socket, grading: Grading, supervisor: int) -> NoReturn:
    """Answer {"id", "answer"} by {"status", "reason"}, a line each, until the socket ends."""
    end_with_parent(supervisor)
    for place, source in enumerate(grading.cells):
        name = cell_name(place)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    if grading.torch:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads do not survive a fork
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401
    with requests.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            said = _answered(json.loads(line), grading, requests)
            requests.sendall(json.dumps(said).encode() + b"\n")
    os._exit(0)


def _answered(request: dict[str, str], grading: Grading, requests: socket.socket) -> dict[str, str]:
    reading, writing = os.pipe()
    grader = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            requests.close()
            end_with_parent(grader)
            _grade_in_fork(request, grading, writing)
        finally:
            os._exit(1)
    os.close(writing)
    said = _verdict(reading, grading.limits.cell_s)
    os.close(reading)
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if not said:
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        said = {"status": "stopped", "reason": f"judging the answer ended its process ({how})"}
    return said


def _verdict(reading: int, limit_s: float) -> dict[str, str]:
    """What the fork says; empty when it ends without a word."""
    said, until_s = b"", time.monotonic() + limit_s
    while not said.endswith(b"\n") and len(said) < _LONGEST:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([reading], [], [], left_s)[0]:
            return {"status": "stopped", "reason": f"judging it took longer than {limit_s:g} s"}
        new = os.read(reading, _LONGEST)
        if not new:
            return {}
        said += new
    with contextlib.suppress(ValueError):
        message = json.loads(said)
        if isinstance(message, dict) and message.get("status") in STATUSES:
            return {"status": message["status"], "reason": str(message.get("reason", ""))}
    return {}


def _grade_in_fork(request: dict[str, str], grading: Grading, writing: int) -> None:
    """In the fork: grade the answer under the limits of the submission, and say the verdict."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.environ.clear()
    os.environ.update(grading.environment)
    os.chdir(grading.folder)
    grading.limits.obey()
    enter_sandbox(grading.folder)
    try:
        verdict = _graded(request["id"], grading.folder / ANSWERS / request["answer"])
        said = {"status": verdict.status, "reason": verdict.reason[: _LONGEST // 20]}
    except BaseException as error:
        said = {"status": "fail", "reason": f"judging the answer raised {type(error).__name__}"}
    os.write(writing, json.dumps(said).encode() + b"\n")
    os._exit(0)


def _graded(exercise_id: str, file: Path) -> Verdict:
    exercise = find(exercise_id)
    with open(file, "rb") as answer_file:
        raw = answer_file.read(LARGEST_BYTES)
    try:
        answer: Any = unpacked(raw, exercise.kind not in DATA_KINDS)
    except Wrong as wrong:
        return Verdict(exercise, "fail", str(wrong))
    return grade(exercise_id, answer)


_MOST_WAITING = 100  # a submission that hands over more is not listened to until some are graded


@dataclass(frozen=True)
class Handed:
    """An answer: the name of its file, or why the submission could not write one."""

    id: str
    file: str
    refused: str = ""


class Queue:
    """`verdicts` by exercise, (status, reason): that on the last answer, since that one counts."""

    def __init__(self, grading: Grading) -> None:
        self.verdicts: dict[str, tuple[str, str]] = {}
        self._grading = grading
        self._waiting: deque[Handed] = deque()
        self._at_hand: Handed | None = None
        self._said = b""
        self._start()

    @property
    def full(self) -> bool:
        """Whether no more answers should come."""
        return len(self._waiting) >= _MOST_WAITING

    @property
    def idle(self) -> bool:
        """Whether all answers are judged."""
        return not self._waiting and self._at_hand is None

    def add(self, handed: Handed) -> None:
        """Have an answer graded when its turn comes."""
        self._waiting.append(handed)
        self._next()

    def listen(self) -> None:
        """Take what the grader says; if it has died, start another one."""
        try:
            said = self._socket.recv(65_536)
        except ConnectionError:
            said = b""
        *lines, self._said = (self._said + said).split(b"\n")
        for line in lines:
            verdict = json.loads(line)
            self._done(verdict["status"], verdict["reason"])
        if not said:
            self._start_another("the judge of its answer was killed")
        self._next()

    def replace(self, judging: Iterable[int], why: str) -> None:
        """End the grader and those processes below it; the answer at hand gets no verdict."""
        for pid in judging:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)  # a whole group at once: none forks on
        kill([self.pid, *judging])
        self._start_another(why)
        self._next()

    def _start_another(self, why: str) -> None:
        self._socket.close()
        self._done("stopped", why)
        self._start()

    def dismiss(self, why: str) -> None:
        """Leave what is not graded yet without a verdict."""
        for handed in [self._at_hand, *self._waiting]:
            if handed:
                self.verdicts[handed.id] = "stopped", f"its answer was not judged: {why}"

    def _done(self, status: str, reason: str) -> None:
        if self._at_hand:
            self.verdicts[self._at_hand.id] = status, reason
        self._at_hand = None

    def _next(self) -> None:
        while self._waiting and self._at_hand is None:
            self._at_hand = self._waiting.popleft()
            if self._at_hand.refused:
                self._done("fail", f"the answer cannot be handed over: {self._at_hand.refused}")
                continue
            request = {"id": self._at_hand.id, "answer": self._at_hand.file}
            with contextlib.suppress(OSError):  # `listen` will see that it is gone
                self._socket.sendall(json.dumps(request).encode() + b"\n")

    def _start(self) -> None:
        """Fork a grader from this process, which has never run any of the submission."""
        self._socket, theirs = socket.socketpair()
        self._said, supervisor = b"", os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._socket.close()
                serve(theirs, self._grading, supervisor)
            finally:
                os._exit(1)
        theirs.close()

    def fileno(self) -> int:
        """The socket that `select` waits on."""
        return self._socket.fileno()
