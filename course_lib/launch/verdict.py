"""What a failed launch tells its reader: the first cause, not its consequences."""

import re
import signal
import traceback
from dataclasses import dataclass

from course_lib.launch import rank as rank_program
from course_lib.launch.errors import RankFailed

# A rank that says this, or aborts, has lost a peer: look at the peer first.
_LOST_PEER = re.compile(r"closed by peer|reset by peer|Broken pipe|caused pair closure")
LAST_PART = 0.25  # of a rank's time limit: what it computed in this part, it was still computing
# Recorded ranks that hang use some 1 % of a core to write their pages. One of a dozen programs that
# share two cores still has 17 %.
_COMPUTES = 0.05
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')
_CALLER = (rank_program.__file__, "_work")


@dataclass(frozen=True)
class Failure:
    """One rank's end without a result: when, on the clock of `time.monotonic()`, and why."""

    rank: int
    time_s: float
    reason: str
    traceback: str = ""
    aborted: bool = False
    hung: bool = False
    computed_s: float = 0.0  # processor time in the last part of its time

    @property
    def followed_another(self) -> bool:
        return self.aborted or bool(_LOST_PEER.search(self.reason))


def first_cause(failures: list[Failure], returned: list[int], timeout_s: float) -> RankFailed:
    """The failure that caused the others; `returned`: the ranks that had a result."""
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
    """Says where every rank was: one that waited for another may have lost it just then.

    A rank that was still computing is named first: the others may have waited for it.
    """
    last_s = LAST_PART * timeout_s
    first = max(failures, key=lambda failure: failure.computed_s)
    computes = first.computed_s > _COMPUTES * last_s
    first = first if computes else failures[0]
    others = [failure.rank for failure in failures if failure is not first]
    reason = f"it gave no result within {timeout_s:g} s"
    if others:
        reason += f", nor did {_named(others)}"
    if returned:
        reason += f"; {_named(returned)} had returned already"
    if computes:
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
    """How a process that left no report ended, in words; `started`: it had read its job."""
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
    for thread in dump.split("\n\n"):  # ours is the one in which rank.py called the function
        matches = [match for match in map(_FRAME.match, thread.splitlines()) if match]
        callers = [(match["file"], match["name"]) for match in matches]
        if _CALLER in callers:
            inner = matches[: callers.index(_CALLER)]
            frames = [(match["file"], int(match["line"]), match["name"], None) for match in inner]
            return "".join(traceback.format_list(frames[::-1]))
    return dump or "  (not known: it did not say)\n"
