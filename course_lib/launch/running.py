"""One rank as the parent follows it: its output, its report, and why it failed."""

import signal
import time
from collections.abc import Callable

from course_lib.launch.descendants import processor_s
from course_lib.launch.explain import explain_output
from course_lib.launch.job import Folder, Report
from course_lib.launch.output import MAX_BYTES, Output
from course_lib.launch.progress_line import Steps
from course_lib.launch.verdict import Failure, describe_exit, readable_stack


class RunningRank:
    """A rank that was started; `update` reads its latest state.

    Its processor time counts from `look_from_s`, on the clock of `time.monotonic()`.
    """

    def __init__(
        self,
        folder: Folder,
        rank: int,
        stream: bool,
        make_room: Callable[[], None],
        look_from_s: float,
    ) -> None:
        self.rank = rank
        self.output = Output(folder.log(rank), rank, stream, make_room)
        self.report: Report | None = None
        self.exit_code: int | None = None
        self._ended_s = 0.0
        self._look_from_s = look_from_s
        self._used_before_s: float | None = None
        self._computed_s = 0.0
        self._folder = folder

    def update(self, exit_code: int | None, pid: int) -> None:
        """Read what the rank has done since the last call, and show what it printed."""
        if pid and not self.ended and time.monotonic() > self._look_from_s:
            self._look_at(pid)
        if self.exit_code is None:  # before the report: a rank that ended has made its report
            self.exit_code = exit_code
            self._ended_s = time.monotonic()
        if self.report is None:
            self.report = self._folder.read_report(self.rank)
        self.output.show_new_lines()

    def _look_at(self, pid: int) -> None:
        used_s = processor_s(pid)
        if used_s is not None:
            if self._used_before_s is None:
                self._used_before_s = used_s
            self._computed_s = used_s - self._used_before_s

    @property
    def steps(self) -> Steps:
        """How many updates it has done, of how many; None before it is ready."""
        try:
            step, steps = self._folder.steps(self.rank).read_text().split()
            return int(step), int(steps)
        except (OSError, ValueError):  # not there yet, or just being written
            return None

    @property
    def ended(self) -> bool:
        return self.exit_code is not None

    @property
    def returned(self) -> bool:
        return self.report is not None and not self.report.failed

    @property
    def failed(self) -> bool:
        return not self.returned and (self.report is not None or self.ended or self.output.too_long)

    def failure(self) -> Failure:
        """Why it has no result."""
        if self.report is not None:
            reason, traceback = self.report.reason, self.report.traceback
            return Failure(self.rank, self.report.time_s, reason, traceback)
        if self.output.too_long:
            return Failure(self.rank, self._ended_s, f"printed more than {MAX_BYTES >> 20} MiB")
        stack = self._folder.stack(self.rank)
        dump = stack.read_text(errors="replace") if stack.exists() else ""
        if dump or self.exit_code is None:
            where, used_s = readable_stack(dump), self._computed_s
            return Failure(self.rank, self._ended_s, "", where, hung=True, computed_s=used_s)
        words = self.output.last_lines()
        cause = explain_output(words)
        return Failure(
            self.rank,
            self._ended_s,
            cause or describe_exit(self.exit_code, started=stack.exists()),
            words,
            aborted=not cause and self.exit_code == -signal.SIGABRT,
        )
