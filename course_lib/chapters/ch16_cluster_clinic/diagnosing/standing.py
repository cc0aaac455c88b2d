"""The record of each rank, its state at the end of the launch, and the ranks it waits for."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from course_lib.chapters.ch16_cluster_clinic.diagnosing.finding import the
from course_lib.launch.page import NO_PAGE, Call, Line, Page, own_line

# Errors that follow from a peer that is gone or late: the peer is the cause.
FOLLOWED = re.compile(
    r"closed by peer|reset by peer|Broken pipe|caused pair closure|Read error|[Tt]imed out"
    r"|failed to pass monitoredBarrier|doesn't match expected size|another number of bytes"
    r"|waited [\d.]+ s for the others|Detected mismatch between collectives|Watchdog caught"
)


@dataclass(frozen=True)
class End:
    """How a rank ended: exit_code is minus the signal, and None if the launch was over before.

    time_up: it was ended at the time limit; stack: its stack at that time, innermost line last.
    """

    exit_code: int | None = None
    returned: bool = False
    reason: str = ""
    time_up: bool = False
    stack: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Record:
    """One rank: its page (state file), its end as the launcher saw it, its log; any may be missing.

    crash: stack of its main thread when the process was aborted, innermost line last; fatal: the
    reason of the abort; outside: whether a non-Python thread aborted, such as gloo's; signalled:
    whether its launcher sent it a signal to end; behind_s: age of its page against the newest one.
    """

    rank: int
    page: Page = NO_PAGE
    end: End | None = None
    log: str = ""
    crash: tuple[Line, ...] = ()
    fatal: str = ""
    outside: bool = False
    signalled: bool = False
    behind_s: float = 0.0

    @property
    def error(self) -> str:
        """The error that the rank raised, or the launcher's reason for its end."""
        return self.page.error or (self.end.reason if self.end else "")

    @property
    def stack(self) -> tuple[Line, ...]:
        """The last known stack of the main thread, innermost line last."""
        return self.crash or self.page.stack


@dataclass(frozen=True)
class Evidence:
    """The records of all ranks, in order, and notes on what could not be read."""

    records: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()


_LOST = re.compile(r"closed by peer|reset by peer")
STILL_S = 1.0  # a rank counts as stuck after this time; pages are written every 0.25 s


@dataclass(frozen=True)
class Standing:
    """The state of one rank at the end of the launch.

    state: "ended" (raised, or was killed, not because of a peer), "returned", "joining", "waiting"
    (in the collective `call`), "message" (sends to or receives from `peer`), "unseen" (waits for
    something that is not recorded), "own" (in its own code) or "silent" (no page).
    """

    rank: int
    state: str
    call: Call | None = None
    peer: int = -1
    line: Line | None = None
    text: str = ""
    still_s: float = 0.0

    @property
    def does(self) -> str:
        """The state in words that follow "rank 1"."""
        return {
            "ended": "ended by itself",
            "returned": "has finished",
            "joining": "waits to begin",
            "waiting": f"is in {the(self.call)}" if self.call else "was aborted",
            "message": f"is in {self.text} with rank {self.peer}",
            "unseen": "waits for something that is not recorded",
            "own": "is in its own code",
            "silent": "left no page",
        }[self.state]


def standings(evidence: Evidence) -> tuple[Standing, ...]:
    """The state of every rank, in rank order."""
    asked = any(record.signalled for record in evidence.records)
    lost_s = [r.page.at_s for r in evidence.records if _LOST.search(r.page.error)]
    # By this time a rank was gone: another lost its peer, or a launcher began to end the ranks.
    gone_s = math.inf if asked else max(lost_s, default=-math.inf)
    return tuple(_standing(record, gone_s) for record in evidence.records)


def _standing(record: Record, gone_s: float) -> Standing:
    page, end, rank = record.page, record.end, record.rank
    line = own_line(record.stack)
    left = end is not None and end.exit_code == 0 and not end.returned  # os._exit(0)
    if not left and (page.state == "returned" or (end and end.returned)):
        return Standing(rank, "returned", line=line, text=page.reason)
    if _ended_by_itself(record) or _vanished(record, gone_s):
        return Standing(rank, "ended", line=line, text=record.error)
    if page.state == "absent":
        return Standing(rank, "silent", text=record.error)
    if not record.crash and (
        page.state == "joining" or (page.state == "failed" and not page.groups)
    ):
        return Standing(rank, "joining", line=line, text=page.error, still_s=page.still_s)
    if record.crash and (end is None or (end.exit_code or 0) < 0):
        call = crashed_call(record)
        said = f"{end.reason if end else ''} {record.log}"
        # gloo aborts a rank that receives too much, in its own thread, and torchrun keeps no log.
        followed = (end is None and record.outside) or FOLLOWED.search(said)
        state = "waiting" if call else "unseen" if followed else "ended"
        return Standing(rank, state, call=call, line=line)
    here = Standing(rank, "unseen", line=line, still_s=page.still_s)
    if call := pending(page):
        if line and not call.where:
            call = replace(call, path=(line,))
        return replace(here, state="waiting", call=call, line=call.where)
    if page.message:
        return replace(here, state="message", peer=page.peer, text=page.message)
    inside = [each for each in page.stack[_outside(page.stack) :] if each.torch]
    if inside or not page.stack:
        return replace(here, text=_torch_name(page))
    return replace(here, state="own", text=usual_line(page, line))


def _ended_by_itself(record: Record) -> bool:
    """Whether the rank raised or was killed, but not because of a peer or the time limit."""
    page, end = record.page, record.end
    if page.state == "failed":
        # A DataLoader worker causes similar errors, but is not another rank.
        return any(line.loader for line in page.stack) or not FOLLOWED.search(page.error)
    if end is None or end.time_up:
        return False
    aborted = record.log if end.exit_code == -6 else ""  # torch's watchdog aborts waiting ranks
    if FOLLOWED.search(f"{end.reason} {aborted}"):
        return False
    return end.exit_code is not None and not end.returned


def _vanished(record: Record, gone_s: float) -> bool:
    """Whether the rank died silently: no signal, end or crash; its last page is before `gone_s`."""
    page = record.page
    runs = page.state in ("running", "joining")
    known = record.signalled or record.end or record.crash
    return runs and page.hears and page.at_s < gone_s and not known


def pending(page: Page) -> Call | None:
    """The collective that the rank is in, its first incomplete one; None if there is none.

    If a later call of the same group is complete, an earlier one is too, whatever its flag says. A
    rank that failed because of a peer was in its last call.
    """
    if page.state == "returned" or not page.calls:
        return None
    if page.state == "failed":
        last, inside = page.calls[-1], _torch_name(page)
        # DDP waits in C++, and a monitored_barrier is not recorded.
        lost = FOLLOWED.search(page.error) if not inside else inside == last.name
        return last if lost and not page.message else None
    last_over: dict[str, int] = {}
    for call in page.calls:
        if call.over:
            last_over[call.group] = max(call.number, last_over.get(call.group, 0))
    for call in page.calls:
        if not call.over and call.number > last_over.get(call.group, 0):
            return call
    return None


def crashed_call(record: Record) -> Call | None:
    """The collective of an aborted rank, from its stack alone: number 0, unknown size."""
    own = tuple(line for line in record.crash if line.own)
    inside = [line for line in record.crash if line.torch and line.file.endswith("c10d.py")]
    if not own or not inside:
        return None
    return Call("", 0, inside[0].function, inside[0].function, path=own)


def _outside(stack: Sequence[Line]) -> int:
    """Number of stack lines up to and including the program's innermost own line."""
    return max((number for number, line in enumerate(stack, 1) if line.own), default=0)


def _torch_name(page: Page) -> str:
    """The torch.distributed function that the program called; "" for `wait` or if there is none."""
    names = (
        line.function
        for line in page.stack[_outside(page.stack) :]
        if line.torch and line.function not in ("wrapper", "wait")
    )
    return next(names, "")


def usual_line(page: Page, line: Line | None) -> str:
    """The innermost function if it is not the program's own, such as "select of selectors.py"."""
    inner = page.stack[-1] if page.stack else None
    if inner is None or inner == line:
        return ""
    parts = inner.file.replace("\\", "/").split("/")
    name = "/".join(parts[-2:] if parts[-1] == "__init__.py" else parts[-1:])
    return f"{inner.function} of {name}"


def members(evidence: Evidence, group: str) -> tuple[int, ...]:
    """The ranks of a process group; all ranks if no page lists the group."""
    for record in evidence.records:
        if ranks := record.page.groups.get(group):
            return tuple(rank for rank in ranks if 0 <= rank < len(evidence.records))
    return tuple(record.rank for record in evidence.records)


def waits_for(evidence: Evidence, stand: Sequence[Standing]) -> dict[int, tuple[int, ...]]:
    """For each rank, the ranks that it waits for: those that have not made its call."""
    return {each.rank: _missing(evidence, stand, each) for each in stand}


def _missing(evidence: Evidence, stand: Sequence[Standing], mine: Standing) -> tuple[int, ...]:
    if mine.state == "message":
        return (mine.peer,) if 0 <= mine.peer < len(stand) else ()
    if mine.state == "unseen" and mine.text:
        return tuple(e.rank for e in stand if (e.state, e.text) != (mine.state, mine.text))
    call = mine.call
    if mine.state != "waiting" or not call or not call.number:
        return ()
    missing = []
    for rank in members(evidence, call.group):
        record = evidence.records[rank]
        calls = record.page.calls
        arrived = any(c.group == call.group and c.number >= call.number for c in calls)
        if not arrived and not record.crash:
            missing.append(rank)
    return tuple(missing)


def in_circle(waits: Mapping[int, Sequence[int]]) -> list[int]:
    """The ranks on a cycle of waits: those that wait for themselves, directly or indirectly."""
    return [rank for rank in waits if rank in _reached(waits, rank)]


def _reached(waits: Mapping[int, Sequence[int]], start: int) -> set[int]:
    reached: set[int] = set()
    open_ = list(waits[start])
    while open_:
        rank = open_.pop()
        if rank not in reached:
            reached.add(rank)
            open_ += waits[rank]
    return reached
