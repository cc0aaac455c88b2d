"""Grades one notebook after the other, each by a keeper of its own."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from course_lib.checking.submissions.limits import Limits
from course_lib.checking.submissions.rows import Row
from course_lib.launch.descendants import fresh_python
from course_lib.problem import Problem

# A keeper may take this much longer than its notebook: it ends everything and removes the folder.
_GRACE_S = 30
_END_S = 5  # for the keeper to clear up; one that is killed then leaves nothing either


@dataclass(frozen=True)
class Graded:
    """A notebook and a row for each exercise of its chapter; `problem` says why there are none."""

    path: Path
    rows: tuple[Row, ...] = ()
    problem: str = ""

    @property
    def passed(self) -> int:
        """Exercises that passed."""
        return sum(row.status == "pass" for row in self.rows)

    @property
    def total(self) -> int:
        """Exercises of the chapter."""
        return len(self.rows)


class KeeperKilled(Problem):
    """A grading was ended from outside; what it had started may still run."""


def grade_notebook(path: Path, limits: Limits | None = None) -> Graded:
    """Run a notebook within `limits` and grade what it answers; nothing of it is left running.

    Raises KeeperKilled, and Problem where processes cannot be forked.
    """
    limits = limits or Limits()
    if sys.platform == "win32":
        raise Problem("check needs Linux or macOS: on Windows, run it inside WSL")
    with tempfile.TemporaryDirectory(prefix="course_check_", ignore_cleanup_errors=True) as folder:
        task = {"path": str(path.absolute()), "folder": folder, "limits": asdict(limits)}
        said = _kept(json.dumps(task).encode() + b"\n", limits.seconds + _GRACE_S)
    if not said:
        raise KeeperKilled(f"{path} could not be graded: the process that kept it was killed")
    result = json.loads(said)
    if problem := result.get("problem"):
        return Graded(path, problem=problem.replace(str(path.absolute()), str(path)))
    return Graded(path, tuple(Row(**row) for row in result["rows"]))


def _kept(task: bytes, limit_s: float) -> bytes:
    """What a keeper says of the task; empty if it was killed. It ends when we do."""
    keeper = subprocess.Popen(
        fresh_python("from course_lib.checking.submissions.keeper import main; main()"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, cwd="/",
    )  # fmt: skip
    assert keeper.stdin is not None and keeper.stdout is not None
    with keeper.stdout:
        try:
            with keeper.stdin:
                keeper.stdin.write(task)
                keeper.stdin.flush()
                return _all_of(keeper.stdout, time.monotonic() + limit_s)
        except BrokenPipeError:
            return b""
        finally:
            # Its input has ended: what is left of the grading goes now.
            try:
                keeper.wait(_END_S)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()


def _all_of(pipe: IO[bytes], until_s: float) -> bytes:
    """What comes through the pipe until it ends; nothing if that takes too long."""
    said = b""
    while select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))[0]:
        new = os.read(pipe.fileno(), 65_536)
        if not new:
            return said
        said += new
    return b""
