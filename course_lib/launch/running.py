"""The parent's view of a running rank, and the first cause of a failed launch."""

import re
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from course_lib.launch import rank as rank_program
from course_lib.launch.descendants import processor_s
from course_lib.launch.errors import RankFailed, explain_output
from course_lib.launch.job import Folder, Report
from course_lib.launch.output import MAX_BYTES, Output, Steps

# A rank with such an error, or that aborts, has lost a peer: look at the peer first.
_LOST_PEER = re.compile(r"closed by peer|reset by peer|Broken pipe|caused pair closure")
LAST_PART = 0.25  # of a rank's time limit: the window in which its CPU time is measured
# A hung rank that is recorded uses about 1 % of a core to write its pages, and one that has just
# started 8 % of its last quarter of a second. One of a dozen programs that share two cores still
# gets 17 %: between the two thresholds the stack decides.
_MAY_COMPUTE, _COMPUTES = 0.05, 0.2
_WAITS = re.compile(r"\b(sleep|wait|join|acquire|select|poll|recv|read|barrier)\w*\(")
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')
_CALLER = (rank_program.__file__, "_work")


@dataclass(frozen=True)
class Failure:
    """A rank that ended without a result: when, on the clock of `time.monotonic()`, and why."""

    rank: int
    time_s: float
    reason: str
    traceback: str = ""
    aborted: bool = False
    hung: bool = False
    computed_s: float = 0.0  # CPU time in the last part of its time limit

    def computes(self, last_s: float) -> bool:
        """Whether it computed, rather than waited, in the last `last_s` seconds of its time."""
        waits = _WAITS.search(self.traceback.strip().rpartition("\n")[2])
        return self.computed_s > (_COMPUTES if waits else _MAY_COMPUTE) * last_s

    @property
    def followed_another(self) -> bool:
        return self.aborted or bool(_LOST_PEER.search(self.reason))


def first_cause(failures: list[Failure], returned: list[int], timeout_s: float) -> RankFailed:
    """The failure that caused the others, as an exception; `returned`: ranks with a result."""
    failures = sorted(failures, key=lambda failure: failure.time_s)
    for first in failures:
        if not (first.hung or first.followed_another):
            return RankFailed(first.rank, first.reason, first.traceback)
    if any(failure.hung for failure in failures):
        return _time_was_up(sorted(failures, key=lambda failure: failure.rank), returned, timeout_s)
    first, reason = failures[0], failures[0].reason
    if returned:
        reason = (
            f"lost its connection to rank {returned[0]}, which had returned already:"
            " every rank must call the same collectives, in the same order"
        )
    return RankFailed(first.rank, reason, first.traceback)


def _time_was_up(failures: list[Failure], returned: list[int], timeout_s: float) -> RankFailed:
    """The exception for a timeout, with the stack of every rank that has no result.

    A rank that was still computing is named first: the others may have been waiting for it.
    """
    last_s = LAST_PART * timeout_s
    busy = [failure for failure in failures if failure.computes(last_s)]
    first = max(busy, key=lambda failure: failure.computed_s, default=failures[0])
    others = [failure.rank for failure in failures if failure is not first]
    reason = f"it gave no result within {timeout_s:g} s"
    if others:
        reason += f", nor did {_named(others)}"
    if returned:
        reason += f"; {_named(returned)} had returned already"
    if busy:
        reason = (
            f"was still computing: {reason}. Its processor time grew by {first.computed_s:.2g} s in"
            f" the last {last_s:.2g} s. If no loop in it is endless, too many programs may share"
            " this machine: close some, or pass a larger timeout_s"
        )
    else:
        reason = f"hung: {reason}"
    where = [f"rank {failure.rank} was here:\n{failure.traceback}" for failure in failures]
    return RankFailed(first.rank, reason, "\n".join(where))


def _named(ranks: list[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)


def describe_exit(exit_code: int, started: bool) -> str:
    """A phrase on how a process without a report ended; `started`: it had read its job."""
    if exit_code == rank_program.NO_REPORT:
        return "could not report what came of it: is the disk of the temporary folder full?"
    if exit_code >= 0 and not started:
        return f"ended with exit code {exit_code} before it started"
    if exit_code >= 0:
        return f"ended with exit code {exit_code} before it returned a result"
    name = signal.Signals(-exit_code).name
    if name == "SIGKILL":
        return (
            "was killed by SIGKILL: on Linux that is often the system running out of memory,"
            " so try fewer ranks or smaller shapes"
        )
    return f"was killed by {name}"


def readable_stack(dump: str) -> str:
    """The function's own frames in faulthandler's dump, most recent last, with their source."""
    for thread in dump.split("\n\n"):  # only one thread has the frame of `rank._work`
        matches = [match for match in map(_FRAME.match, thread.splitlines()) if match]
        callers = [(match["file"], match["name"]) for match in matches]
        if _CALLER in callers:
            inner = matches[: callers.index(_CALLER)]
            frames = [(match["file"], int(match["line"]), match["name"], None) for match in inner]
            return "".join(traceback.format_list(frames[::-1]))
    return dump or "  (not known: it did not say)\n"


class RunningRank:
    """A rank that has been started; `update` reads its latest state.

    Its CPU time is measured from `count_from_s` on, by the clock of `time.monotonic()`.
    """

    def __init__(
        self,
        folder: Folder,
        rank: int,
        stream: bool,
        make_room: Callable[[], None],
        count_from_s: float,
    ) -> None:
        self.rank = rank
        self.output = Output(folder.of(rank, "log"), rank, stream, make_room)
        self.report: Report | None = None
        self.exit_code: int | None = None
        self._ended_s = 0.0
        self._count_from_s = count_from_s
        self._used_before_s: float | None = None
        self._computed_s = 0.0
        self._folder = folder

    def update(self, exit_code: int | None, pid: int) -> None:
        """Read the rank's CPU time and report, and show what it printed since the last call."""
        counts = pid and not self.ended and time.monotonic() > self._count_from_s
        if counts and (used_s := processor_s(pid)) is not None:
            self._used_before_s = used_s if self._used_before_s is None else self._used_before_s
            self._computed_s = used_s - self._used_before_s
        if self.exit_code is None:  # read before the report: an exited rank has written its report
            self.exit_code = exit_code
            self._ended_s = time.monotonic()
        if self.report is None:
            self.report = self._folder.read_report(self.rank)
        self.output.show_new_lines()

    @property
    def steps(self) -> Steps:
        """(updates done, updates in total); None before the rank is ready."""
        try:
            step, steps = self._folder.of(self.rank, "steps").read_text().split()
            return int(step), int(steps)
        except (OSError, ValueError):  # does not exist yet, or is just being written
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
        dump = self._folder.text(self.rank, "stack")
        if dump or self.exit_code is None:
            where, used_s = readable_stack(dump), self._computed_s
            return Failure(self.rank, self._ended_s, "", where, hung=True, computed_s=used_s)
        words = self.output.last_lines()
        cause = explain_output(words)
        return Failure(
            self.rank,
            self._ended_s,
            cause
            or describe_exit(self.exit_code, started=self._folder.of(self.rank, "stack").exists()),
            words,
            aborted=not cause and self.exit_code == -signal.SIGABRT,
        )
