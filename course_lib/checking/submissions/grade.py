"""Grades one notebook after the other, each by a supervisor of its own: a row for each exercise."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from course_lib.checking.exercises import Exercise
from course_lib.checking.grading import Verdict
from course_lib.checking.submissions.notebook import Notebook
from course_lib.checking.submissions.sandbox import Limits
from course_lib.launch.descendants import fresh_python
from course_lib.problem import Problem


@dataclass(frozen=True)
class Row:
    """One exercise: status pass, fail, todo, stopped (no verdict was reached) or missing.

    Missing means that no cell of the notebook checks it.
    """

    id: str
    status: str
    reason: str
    line: str


@dataclass
class Outcome:
    """What became of a notebook's cells, by their places, and why it was ended, if it was."""

    faults: dict[int, str] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    ended: str = ""

    def leave(self, place: int, fault: str) -> None:
        """A cell is left: what it did wrong, or "" for nothing."""
        self.left.add(place)
        if fault:
            self.faults[place] = fault

    def end(self, why: str) -> None:
        """The notebook was ended; the first reason counts."""
        self.ended = self.ended or why


def rows_of(
    notebook: Notebook, verdicts: Mapping[str, tuple[str, str]], outcome: Outcome
) -> list[Row]:
    """A row for each exercise of the notebook's chapters; `verdicts` are (status, reason) by id."""
    rows = []
    for exercise in notebook.exercises:
        status, reason = verdicts.get(exercise.id) or _without_verdict(notebook, exercise, outcome)
        reason = "".join(each if each.isprintable() else " " for each in reason)  # for a terminal
        rows.append(Row(exercise.id, status, reason, Verdict(exercise, status, reason).line))
    return rows


def _without_verdict(notebook: Notebook, exercise: Exercise, outcome: Outcome) -> tuple[str, str]:
    places = notebook.cells_with(exercise.id)
    if not places:
        return "missing", f'no cell calls check("{exercise.id}", …)'
    for place in places:
        if place in outcome.faults:
            return "stopped", f"its cell {outcome.faults[place]}"
    if outcome.ended and not outcome.left.issuperset(places):
        return "stopped", f"the notebook was ended because {outcome.ended}"
    return "stopped", "its cell handed no answer to the course's own check"


# A supervisor may take so much longer than its notebook: it ends all and removes the folder.
_GRACE_S = 30
_END_S = 5  # for the supervisor to clear up; one that is killed then leaves nothing either


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


class SupervisorKilled(Problem):
    """A grading was ended from outside; what it had started may still run."""


def grade_notebook(path: Path, limits: Limits | None = None) -> Graded:
    """Run a notebook within `limits` and grade what it answers; nothing of it is left running.

    Raises SupervisorKilled, and Problem where processes cannot be forked.
    """
    limits = limits or Limits()
    if sys.platform == "win32":
        raise Problem("check needs Linux or macOS: on Windows, run it inside WSL")
    with tempfile.TemporaryDirectory(prefix="course_check_", ignore_cleanup_errors=True) as folder:
        task = {"path": str(path.absolute()), "folder": folder, "limits": asdict(limits)}
        said = _supervised(json.dumps(task).encode() + b"\n", limits.seconds + _GRACE_S)
    if not said:
        raise SupervisorKilled(f"{path} could not be graded: the process that kept it was killed")
    result = json.loads(said)
    if problem := result.get("problem"):
        return Graded(path, problem=problem.replace(str(path.absolute()), str(path)))
    return Graded(path, tuple(Row(**row) for row in result["rows"]))


def _supervised(task: bytes, limit_s: float) -> bytes:
    """What a supervisor says of the task; empty if it was killed. It ends when we do."""
    supervisor = subprocess.Popen(
        fresh_python("from course_lib.checking.submissions.supervisor import main; main()"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, cwd="/",
    )  # fmt: skip
    assert supervisor.stdin is not None and supervisor.stdout is not None
    with supervisor.stdout:
        try:
            with supervisor.stdin:
                supervisor.stdin.write(task)
                supervisor.stdin.flush()
                return _all_of(supervisor.stdout, time.monotonic() + limit_s)
        except BrokenPipeError:
            return b""
        finally:
            # Its input has ended: what is left of the grading goes now.
            try:
                supervisor.wait(_END_S)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait()


def _all_of(pipe: IO[bytes], until_s: float) -> bytes:
    """What comes through the pipe until it ends; nothing if that takes too long."""
    said = b""
    while select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))[0]:
        new = os.read(pipe.fileno(), 65_536)
        if not new:
            return said
        said += new
    return b""
