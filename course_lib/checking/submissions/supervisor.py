"""Supervises one grading: starts submission and grader, holds the limits, and ends everything.

It reads what to do from its input and says what came of it in one line. When its input ends, nobody
waits for it any more: it ends everything without a word.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from course_lib.checking.submissions.answers import ANSWERS, GRADING, PIPE, WORK
from course_lib.checking.submissions.cells import CELLS
from course_lib.checking.submissions.grade import Outcome, rows_of
from course_lib.checking.submissions.grader import Grading, Handed, Queue
from course_lib.checking.submissions.notebook import Notebook, read
from course_lib.checking.submissions.sandbox import MIB, Limits, uses_more_than
from course_lib.launch.descendants import (
    adopt_orphans,
    children,
    descendants,
    end_all,
    fresh_python,
)
from course_lib.problem import Problem

# Where programs keep things unless told otherwise: below HOME, which is thrown away as well.
_DROPPED = ("COURSE_STRICT", "JPY_SESSION_NAME", "IPYTHONDIR", "MPLCONFIGDIR")


def furnish(folder: Path, path: Path, notebook: Notebook) -> dict[str, str]:
    """Fill the folder for the notebook at `path`; the environment of its submission."""
    for name in (WORK, "home", "tmp", ANSWERS):
        (folder / name).mkdir()
    for beside in path.parent.glob("*.py"):  # the submission's own modules
        if beside.is_file():
            shutil.copy(beside, folder / WORK)
    (folder / CELLS).write_text(json.dumps(notebook.cells), encoding="utf-8")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and not name.startswith("XDG_")
    }
    return kept | {
        "COURSE_HOME": str(folder / "home"),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "MPLBACKEND": "agg",
        GRADING: str(folder),
    }


_POLL_S = 0.05
_LONGEST = 65_536
_ANSWER_FILE = re.compile(r"\w+")


def main() -> NoReturn:
    """Grade the notebook that the first line of the input names."""
    with open(0, "rb", buffering=0, closefd=False) as tasks:
        line = tasks.readline()
    if not line:
        os._exit(0)  # interrupted before it could ask
    task = json.loads(line)
    adopt_orphans()
    path, folder, result = Path(task["path"]), Path(task["folder"]), None
    try:
        notebook = read(path)
        environment = furnish(folder, path, notebook)
        result = _Supervisor(notebook, folder, environment, Limits(**task["limits"])).grade()
    except Problem as problem:
        result = {"problem": str(problem)}
    except _Abandoned:
        pass
    finally:
        end_all([])
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(result).encode())
    os._exit(0)


class _Abandoned(Exception):
    """Nobody waits for the grading any more."""


class _Supervisor:
    def __init__(
        self, notebook: Notebook, folder: Path, environment: dict[str, str], limits: Limits
    ) -> None:
        self._notebook, self._limits, self._outcome = notebook, limits, Outcome()
        self._ids = {exercise.id for exercise in notebook.exercises}
        self._alone = False  # whether nothing of the submission is left
        self._unread, self._printed_bytes, self._cell_until_s = b"", 0, float("inf")
        os.mkfifo(folder / PIPE)
        self._pipe = os.open(folder / PIPE, os.O_RDWR | os.O_NONBLOCK)  # both, so it never ends
        # Before the submission: a fork of this process is what it cannot have touched.
        self._queue = Queue(
            Grading(folder, limits, environment, notebook.cells, notebook.judged_by_torch)
        )
        self._submission = self._start(folder, environment)
        assert self._submission.stdout is not None
        self._output = self._submission.stdout.fileno()

    def _start(self, folder: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        program = (
            "from course_lib.checking.submissions import cells, sandbox;"
            f" cells.main({os.getpid()}, sandbox.{self._limits!r})"
        )
        return subprocess.Popen(
            fresh_python(program),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, cwd=folder / WORK, env=environment,
        )  # fmt: skip

    def grade(self) -> dict[str, Any]:
        """The rows of the notebook."""
        until_s = time.monotonic() + self._limits.seconds
        late = f"it took longer than {self._limits.seconds:g} s"
        while not self._over():
            self._listen()
            self._hold_limits()
            if time.monotonic() > until_s:
                self._end_submission(late)
                self._queue.dismiss(late)
                break
        rows = rows_of(self._notebook, self._queue.verdicts, self._outcome)
        return {"rows": [asdict(row) for row in rows]}

    def _over(self) -> bool:
        """Whether the submission has ended, and all that it handed over is graded."""
        code = self._submission.poll()
        if code is None:
            return False
        if not self._alone:
            end_all([self._submission.pid], spare=self._queue.pid)  # what it has left behind
            self._alone = True
        if not self._queue.full and self._hear():
            return False
        if not self._outcome.left.issuperset(range(len(self._notebook.cells))):
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._outcome.end(f"its process ended ({how})")
        return self._queue.idle

    def _listen(self) -> None:
        """Take what comes within a moment from the submission, from the grader, and from above."""
        sources: list[int] = [0, self._queue.fileno()]
        sources += [] if self._queue.full else [self._pipe]
        sources += [self._output] if self._output >= 0 else []
        ready = select.select(sources, [], [], _POLL_S)[0]
        if 0 in ready:
            raise _Abandoned
        if self._queue.fileno() in ready:
            self._queue.listen()
        if self._pipe in ready:
            self._hear()
        if self._output in ready:
            new = len(os.read(self._output, _LONGEST))
            self._printed_bytes += new
            if not new:
                self._output = -1

    def _hear(self) -> bool:
        """Whether the submission told anything."""
        try:
            new = os.read(self._pipe, 4096)
        except BlockingIOError:
            return False
        *lines, rest = (self._unread + new).split(b"\n")
        self._unread = rest[-_LONGEST:]
        for line in lines:
            with contextlib.suppress(ValueError):  # it may tell anything
                self._heed(json.loads(line))
        return True

    def _heed(self, message: Any) -> None:
        match message:
            case {"begins": int()}:
                self._cell_until_s = time.monotonic() + self._limits.cell_s
            case {"ends": int(place), "error": str(error)}:
                late = error.startswith("KeyboardInterrupt") and self._cell_until_s == float("inf")
                why = f"ran longer than {self._limits.cell_s:g} s" if late else error
                self._outcome.leave(place, why if late or not error else f"stopped with {error}")
                self._cell_until_s = float("inf")
            case {"id": str(key), "refused": str(why)} if key in self._ids:
                self._queue.add(Handed(key, "", why))
            case {"id": str(key), "answer": str(name)} if key in self._ids:
                if _ANSWER_FILE.fullmatch(name):
                    self._queue.add(Handed(key, name))

    def _hold_limits(self) -> None:
        """End a submission that uses too much of anything, or the grader of an answer that does."""
        limits, known = self._limits, {self._submission.pid, self._queue.pid}
        for pid in set(children()) - known:  # adopted; the dead ones are not to be counted
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > self._cell_until_s:
            self._cell_until_s = float("inf")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._submission.pid, signal.SIGINT)
        judging = descendants(self._queue.pid)
        if much := self._too_much(judging):
            self._queue.replace(judging, f"judging it {much}")
        others = set(descendants(os.getpid())) - {self._queue.pid, *judging}
        if self._printed_bytes > limits.output_mib * MIB:
            self._end_submission(f"it printed more than {limits.output_mib} MiB")
        elif much := self._too_much(others):
            self._end_submission(f"it {much}")

    def _too_much(self, pids: Collection[int]) -> str:
        """What these processes have done too much of, "" for nothing."""
        limits = self._limits
        if len(pids) > limits.processes:
            return f"started more than {limits.processes} processes"
        if uses_more_than(pids, limits.memory_bytes):
            return f"used more than {limits.memory_gb:g} GB of memory"
        return ""

    def _end_submission(self, why: str) -> None:
        """Kill it and all that it started; what it has handed over is graded all the same."""
        self._outcome.end(why)
        end_all([self._submission.pid], spare=self._queue.pid)
