"""What a failed launch tells its reader: the first cause, not what followed from it."""

import re
import signal
import traceback
from dataclasses import dataclass

from course_lib.launch.errors import RankFailed

# A rank that says this, or aborts, has lost a peer: look at the peer first.
_LOST_PEER = re.compile(r"closed by peer|reset by peer|Broken pipe|caused pair closure")
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')
_LAUNCHER_FILE = "rank.py"


@dataclass(frozen=True)
class Failure:
    """One rank's end without a result, as `time.monotonic()` and in words."""

    rank: int
    time_s: float
    reason: str
    traceback: str = ""
    aborted: bool = False

    @property
    def followed_another(self) -> bool:
        return self.aborted or bool(_LOST_PEER.search(self.reason))


def first_cause(failures: list[Failure], returned: list[int]) -> RankFailed:
    """The failure from which the others followed; `returned`: the ranks that had a result."""
    first = min(failures, key=lambda failure: (failure.followed_another, failure.time_s))
    reason = first.reason
    if first.followed_another and returned:
        reason += f" (it was still waiting when rank {returned[0]} had returned its result)"
    return RankFailed(first.rank, reason, first.traceback)


def describe_exit(exit_code: int) -> str:
    """In words, how a process that left no report ended."""
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
    for thread in dump.split("\n\n"):
        frames = [match.groups() for match in map(_FRAME.match, thread.splitlines()) if match]
        ours = [_is_launcher(file) for file, _, _ in frames]
        if any(ours):
            inner = reversed(frames[: ours.index(True)])
            listed = traceback.format_list([(f, int(line), name, None) for f, line, name in inner])
            return "".join(listed)
    return dump
