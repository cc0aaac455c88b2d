"""Supervises one grading: runs the submission, then grades its answers, and kills everything.

It reads its task from stdin and writes the result as one line. When stdin is closed, the grading is
abandoned: it kills everything and writes no result. No submission runs in this process, so each
answer is graded by a fresh fork of it.
"""

import contextlib
import json
import linecache
import os
import re
import select
import shutil
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from course_lib.checking.exercises import Exercise, Wrong, find
from course_lib.checking.grading import STATUSES, Verdict, grade
from course_lib.checking.submissions.answers import (
    ANSWERS,
    GRADING,
    LARGEST_BYTES,
    PIPE,
    WORK,
    unpacked,
)
from course_lib.checking.submissions.cells import CELLS, cell_name
from course_lib.checking.submissions.grade import Row
from course_lib.checking.submissions.notebook import Notebook, read
from course_lib.checking.submissions.sandbox import MIB, Limits, enter_sandbox, uses_more_than
from course_lib.launch.descendants import (
    adopt_orphans,
    children,
    descendants,
    end_all,
    end_with_parent,
    fresh_python,
    kill,
)
from course_lib.problem import Problem

# Kinds of exercises that never want a function: an answer is unpickled without running code.
DATA_KINDS = ("calculate", "predict")
# Variables not passed on: of the user's session, and those that keep data outside a temporary HOME.
_DROPPED = ("COURSE_STRICT", "JPY_SESSION_NAME", "IPYTHONDIR", "MPLCONFIGDIR")
_POLL_S = 0.05
_LONGEST = 65_536
_ANSWER_FILE = re.compile(r"\w+")


def main() -> NoReturn:
    """Grade the notebook that the first line of stdin names."""
    with open(0, "rb", buffering=0, closefd=False) as tasks:
        line = tasks.readline()
    if not line:
        os._exit(0)  # the parent was interrupted before it sent the task
    task = json.loads(line)
    adopt_orphans()
    folder = Path(task["folder"])
    result: dict[str, Any] | None = None
    try:
        supervisor = _Supervisor(Path(task["path"]), folder, Limits(**task["limits"]))
        supervisor.run()
        result = {"rows": [asdict(row) for row in supervisor.rows()]}
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
    """The parent no longer waits for the grading: stdin is closed."""


def _prepare(folder: Path, path: Path, notebook: Notebook) -> dict[str, str]:
    """Fill the folder for the notebook at `path`; return the submission's environment."""
    for name in (WORK, "home", "tmp", ANSWERS):
        (folder / name).mkdir()
    for module in path.parent.glob("*.py"):  # the submission's own modules
        if module.is_file():
            shutil.copy(module, folder / WORK)
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


class _Supervisor:
    """Runs the submission and grades its answers.

    `_answers` has the last answer to each exercise: (file name, reason if it was refused).
    `_faults` has the failure of each cell by its index, `_finished` the indices of cells that came
    to an end, and `_ended` why the notebook was killed, if it was.
    """

    def __init__(self, path: Path, folder: Path, limits: Limits) -> None:
        self._notebook = notebook = read(path)
        self._folder, self._limits = folder, limits
        self._environment = _prepare(folder, path, notebook)
        self._ids = {exercise.id for exercise in notebook.exercises}
        self._answers: dict[str, tuple[str, str]] = {}
        self._faults: dict[int, str] = {}
        self._finished, self._ended = set[int](), ""
        self._unread, self._cell_until_s = b"", float("inf")
        for index, source in enumerate(notebook.cells):  # for the lines that a reason quotes
            name = cell_name(index)
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        if notebook.judged_by_torch:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads do not survive a fork
            with contextlib.suppress(ImportError):
                import torch  # noqa: F401

    def run(self) -> None:
        """Run the submission until it exits or exceeds a limit."""
        os.mkfifo(self._folder / PIPE)
        pipe = os.open(self._folder / PIPE, os.O_RDWR | os.O_NONBLOCK)  # RDWR: never end-of-file
        program = (
            "from course_lib.checking.submissions import cells, sandbox;"
            f" cells.main({os.getpid()}, sandbox.{self._limits!r})"
        )
        with open(self._folder / "output", "wb") as output:
            submission = subprocess.Popen(
                fresh_python(program),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, cwd=self._folder / WORK, env=self._environment,
            )  # fmt: skip
            until_s = time.monotonic() + self._limits.seconds
            while submission.poll() is None and not self._ended:
                if pipe in self._ready(pipe):
                    self._read_messages(pipe)
                if time.monotonic() > self._cell_until_s:
                    self._cell_until_s = float("inf")
                    submission.send_signal(signal.SIGINT)
                much = self._too_much(submission.pid, until_s, self._limits.seconds)
                self._ended = f"it {much}" if much else ""
                if os.fstat(output.fileno()).st_size > self._limits.output_mib * MIB:
                    self._ended = f"it printed more than {self._limits.output_mib} MiB"
        code = submission.poll()
        end_all([submission.pid])  # the submission and all its descendants
        while self._read_messages(pipe):
            pass
        os.close(pipe)
        if code is not None and not self._finished.issuperset(range(len(self._notebook.cells))):
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._ended = self._ended or f"its process ended ({how})"

    def _ready(self, source: int) -> list[int]:
        """[source] if that is readable within _POLL_S, else []. Raises _Abandoned."""
        ready = select.select([0, source], [], [], _POLL_S)[0]
        if 0 in ready:
            raise _Abandoned
        return ready

    def _too_much(self, child: int, until_s: float, seconds: float) -> str:
        """A phrase on the limit that this process's descendants exceed; "" if none."""
        for pid in set(children()) - {child}:  # reap adopted ones, so that zombies do not count
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        pids, limits = descendants(os.getpid()), self._limits
        if time.monotonic() > until_s:
            return f"took longer than {seconds:g} s"
        if len(pids) > limits.processes:
            return f"started more than {limits.processes} processes"
        if uses_more_than(pids, limits.memory_bytes):
            return f"used more than {limits.memory_gb:g} GB of memory"
        return ""

    def _read_messages(self, pipe: int) -> bool:
        """Handle the messages in the pipe; return whether there was anything to read."""
        try:
            new = os.read(pipe, 4096)
        except BlockingIOError:
            return False
        *lines, rest = (self._unread + new).split(b"\n")
        self._unread = rest[-_LONGEST:]
        for line in lines:
            with contextlib.suppress(ValueError):  # a submission may write anything
                self._handle(json.loads(line))
        return True

    def _handle(self, message: Any) -> None:
        match message:
            case {"begins": int()}:
                self._cell_until_s = time.monotonic() + self._limits.cell_s
            case {"ends": int(index), "error": str(error)}:
                late = error.startswith("KeyboardInterrupt") and self._cell_until_s == float("inf")
                if error:
                    limit = f"ran longer than {self._limits.cell_s:g} s"
                    self._faults[index] = limit if late else f"stopped with {error}"
                self._finished.add(index)
                self._cell_until_s = float("inf")
            case {"id": str(key), "refused": str(why)} if key in self._ids:
                self._answers[key] = "", why
            case {"id": str(key), "answer": str(name)} if key in self._ids:
                if _ANSWER_FILE.fullmatch(name):
                    self._answers[key] = name, ""

    def rows(self) -> list[Row]:
        """A row for each exercise of the notebook's chapters."""
        rows, until_s = [], time.monotonic() + self._limits.seconds
        for exercise in self._notebook.exercises:
            if exercise.id not in self._answers:
                status, reason = self._without_answer(exercise)
            elif time.monotonic() > until_s:
                status, reason = "stopped", "no time was left to judge its answer"
            else:
                status, reason = self._judged(exercise.id, *self._answers[exercise.id])
            reason = "".join(each if each.isprintable() else " " for each in reason)
            rows.append(Row(exercise.id, status, reason, Verdict(exercise, status, reason).line))
        return rows

    def _without_answer(self, exercise: Exercise) -> tuple[str, str]:
        cells = self._notebook.cells_with(exercise.id)
        if not cells:
            return "missing", f'no cell calls check("{exercise.id}", …)'
        for index in cells:
            if index in self._faults:
                return "stopped", f"its cell {self._faults[index]}"
        if self._ended and not self._finished.issuperset(cells):
            return "stopped", f"the notebook was ended because {self._ended}"
        return "stopped", "its cell handed no answer to the course's own check"

    def _judged(self, key: str, name: str, refused: str) -> tuple[str, str]:
        """(status, reason) of an answer, graded in a fork under the submission's limits."""
        if refused:
            return "fail", f"the answer cannot be handed over: {refused}"
        reading, writing = os.pipe()
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                end_with_parent(supervisor)
                self._judge(key, name, writing)
            finally:
                os._exit(1)
        os.close(writing)
        output, until_s, much = b"", time.monotonic() + self._limits.cell_s, ""
        while not much and not output.endswith(b"\n") and len(output) < _LONGEST:
            if reading in self._ready(reading):
                new = os.read(reading, _LONGEST)
                if not new:
                    break
                output += new
            much = self._too_much(pid, until_s, self._limits.cell_s)
        os.close(reading)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # the whole group at once, so that none can fork again
        kill([pid])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        end_all([])
        if much:
            return "stopped", f"judging it {much}"
        with contextlib.suppress(ValueError):  # an answer's code may write anything
            match json.loads(output):
                case {"status": str(status), "reason": str(reason)} if status in STATUSES:
                    return status, reason
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return "stopped", f"judging the answer ended its process ({how})"

    def _judge(self, key: str, name: str, writing: int) -> None:
        """Grade the answer in the fork, write the verdict to `writing`, and exit."""
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.environ.clear()
        os.environ.update(self._environment)
        os.chdir(self._folder)
        self._limits.obey()
        enter_sandbox(self._folder)
        try:
            status, reason = _verdict(key, self._folder / ANSWERS / name)
        except BaseException as error:
            status, reason = "fail", f"judging the answer raised {type(error).__name__}"
        message = {"status": status, "reason": reason[: _LONGEST // 20]}
        os.write(writing, json.dumps(message).encode() + b"\n")
        os._exit(0)


def _verdict(key: str, file: Path) -> tuple[str, str]:
    with open(file, "rb") as answer_file:
        raw = answer_file.read(LARGEST_BYTES)
    try:
        answer = unpacked(raw, find(key).kind not in DATA_KINDS)
    except Wrong as wrong:
        return "fail", str(wrong)
    verdict = grade(key, answer)
    return verdict.status, verdict.reason
