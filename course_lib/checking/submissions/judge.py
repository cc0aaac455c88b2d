"""The judge: a process that no submission ran in. Each answer is judged by a fresh fork of it."""

import contextlib
import json
import linecache
import os
import select
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from course_lib.checking.exercises import Wrong, find
from course_lib.checking.grading import STATUSES, Verdict, grade
from course_lib.checking.submissions.answers import LARGEST_BYTES, unpacked
from course_lib.checking.submissions.cells import cell_name
from course_lib.checking.submissions.fence import fence
from course_lib.checking.submissions.handing import ANSWERS
from course_lib.checking.submissions.limits import Limits
from course_lib.launch.descendants import end_with_parent

_LONGEST = 65_536
# Kinds of exercises that never ask for a function: an answer is rebuilt without running code.
DATA_KINDS = ("calculate", "predict")


@dataclass(frozen=True)
class Court:
    """What the judge needs to know of a grading."""

    folder: Path
    limits: Limits
    environment: dict[str, str]  # the submission's
    cells: tuple[str, ...]
    torch: bool


def main(requests: socket.socket, court: Court, keeper: int) -> NoReturn:
    """Answer {"id", "answer"} by {"status", "reason"}, a line each, until the socket ends."""
    end_with_parent(keeper)
    for place, source in enumerate(court.cells):
        name = cell_name(place)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    if court.torch:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads do not survive a fork
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401
    with requests.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            said = _judged(json.loads(line), court, requests)
            requests.sendall(json.dumps(said).encode() + b"\n")
    os._exit(0)


def _judged(request: dict[str, str], court: Court, requests: socket.socket) -> dict[str, str]:
    reading, writing = os.pipe()
    judge = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            requests.close()
            end_with_parent(judge)
            _sit(request, court, writing)
        finally:
            os._exit(1)
    os.close(writing)
    said = _verdict(reading, court.limits.cell_s)
    os.close(reading)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
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


def _sit(request: dict[str, str], court: Court, writing: int) -> None:
    """In the fork: judge the answer under the limits of the submission, and say the verdict."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.environ.clear()
    os.environ.update(court.environment)
    os.chdir(court.folder)
    court.limits.obey()
    fence(court.folder)
    try:
        verdict = _graded(request["id"], court.folder / ANSWERS / request["answer"])
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
