"""Grades notebooks, each by a supervisor process of its own: a row for each exercise."""

import json
import select
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.checking.submissions.sandbox import Limits
from course_lib.launch.descendants import fresh_python
from course_lib.problem import Problem

# Extra time of a supervisor after its notebook's limits: it kills all and removes the folder.
_GRACE_S = 30
_END_S = 5  # for the supervisor to clean up; if it is killed then, nothing is left either


@dataclass(frozen=True)
class Row:
    """One exercise: status is pass, fail, todo, stopped (without a verdict) or missing.

    Missing means that no cell of the notebook checks it.
    """

    id: str
    status: str
    reason: str
    line: str


@dataclass(frozen=True)
class Graded:
    """A notebook and a row for each exercise of its chapter, or the `problem` if there are none."""

    path: Path
    rows: tuple[Row, ...] = ()
    problem: str = ""

    @property
    def passed(self) -> int:
        """Number of exercises that passed."""
        return sum(row.status == "pass" for row in self.rows)

    @property
    def total(self) -> int:
        """Number of exercises in the chapter."""
        return len(self.rows)


class SupervisorKilled(Problem):
    """A grading's supervisor was killed; processes that it started may still run."""


def grade_notebook(path: Path, limits: Limits | None = None) -> Graded:
    """Run a notebook within `limits` and grade its answers; none of its processes is left.

    Raises SupervisorKilled, and Problem if this system cannot fork.
    """
    limits = limits or Limits()
    if sys.platform == "win32":
        raise Problem("check needs Linux or macOS: on Windows, run it inside WSL")
    with tempfile.TemporaryDirectory(prefix="course_check_", ignore_cleanup_errors=True) as folder:
        task = {"path": str(path.absolute()), "folder": folder, "limits": asdict(limits)}
        output = _supervised(json.dumps(task).encode() + b"\n", 2 * limits.seconds + _GRACE_S)
    if not output:
        raise SupervisorKilled(f"{path} could not be graded: the process that kept it was killed")
    result = json.loads(output)
    if problem := result.get("problem"):
        return Graded(path, problem=problem.replace(str(path.absolute()), str(path)))
    return Graded(path, tuple(Row(**row) for row in result["rows"]))


def _supervised(task: bytes, limit_s: float) -> bytes:
    """Run a supervisor on the task; return its output, b"" if it was killed. It exits with us."""
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
                # It writes once, at its end.
                readable = select.select([supervisor.stdout], [], [], limit_s)[0]
                return supervisor.stdout.read() if readable else b""
        except BrokenPipeError:
            return b""
        finally:
            # Its stdin is closed: it now removes what is left of the grading.
            try:
                supervisor.wait(_END_S)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait()
