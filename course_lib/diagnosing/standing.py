"""Where each rank stands at the end of its record, and for whom it waits."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from course_lib.diagnosing.evidence import FOLLOWED, Evidence, Record
from course_lib.diagnosing.page import Call, Line, Page, own_line

_LOST = re.compile(r"closed by peer|reset by peer")
STILL_S = 1.0  # pages are 0.25 s apart; a rank that was just about to move is not stuck


@dataclass(frozen=True)
class Standing:
    """What one rank does.

    state: "ended" (raised or was killed by itself), "returned", "joining", "waiting" (in the
    collective `call`), "message" (sends to or receives from `peer`), "locked" (waits for a lock
    that `peer` holds), "unseen" (waits for something that no record shows), "own" (in its own code)
    or "silent" (no page).
    """

    rank: int
    state: str
    call: Call | None = None
    peer: int = -1
    line: Line | None = None
    text: str = ""
    still_s: float = 0.0


def standings(evidence: Evidence) -> tuple[Standing, ...]:
    """Of every rank, in their order."""
    holders = {r.page.pid: r.rank for r in evidence.records if r.page and r.page.pid}
    told = any(record.told for record in evidence.records)
    lost_s = [r.page.at_s for r in evidence.records if r.page and _LOST.search(r.page.error)]
    # By then somebody was gone: it lost a peer, or a launcher began to end the others.
    gone_s = math.inf if told else max(lost_s, default=-math.inf)
    return tuple(_standing(record, holders, gone_s) for record in evidence.records)


def _standing(record: Record, holders: Mapping[int, int], gone_s: float) -> Standing:
    page, end, rank = record.page, record.end, record.rank
    line = own_line(record.stack)
    left = end is not None and end.exit_code == 0 and not end.returned  # by os._exit(0)
    if not left and ((page and page.state == "returned") or (end and end.returned)):
        return Standing(rank, "returned", line=line, text=page.reason if page else "")
    if _ended_by_itself(record) or _vanished(record, gone_s):
        return Standing(rank, "ended", line=line, text=record.error)
    if page is None:
        return Standing(rank, "silent", text=record.error)
    if not record.crash and (
        page.state == "joining" or (page.state == "failed" and not page.groups)
    ):
        return Standing(rank, "joining", line=line, text=page.error, still_s=page.still_s)
    if record.crash and (end is None or (end.exit_code or 0) < 0):
        call = crashed_call(record)
        said = f"{end.reason if end else ''} {record.log}"
        # gloo aborts who receives too much, from a thread of its own, and torchrun keeps no log.
        followed = (end is None and record.outside) or FOLLOWED.search(said)
        state = "waiting" if call else "unseen" if followed else "ended"
        return Standing(rank, state, call=call, line=line)
    call = pending(page)
    still_s = page.still_s
    if call:
        if line and not call.where:
            call = replace(call, path=(line,))
        return Standing(rank, "waiting", call=call, line=call.where, still_s=still_s)
    if page.message:
        return Standing(
            rank, "message", peer=page.peer, line=line, text=page.message, still_s=still_s
        )
    if page.locked_by in holders:
        peer = holders[page.locked_by]
        return Standing(rank, "locked", peer=peer, line=line, still_s=still_s)
    if _in_torch(page):
        return Standing(rank, "unseen", line=line, text=_torch_name(page), still_s=still_s)
    if not page.stack:
        return Standing(rank, "unseen", line=line, still_s=still_s)
    return Standing(rank, "own", line=line, text=usual_line(page, line), still_s=still_s)


def _ended_by_itself(record: Record) -> bool:
    """Whether it raised or was killed, and not because of a peer or of the time limit."""
    page, end = record.page, record.end
    if page and page.state == "failed":
        # A worker of the DataLoader is a peer, too, but not another rank.
        return any(line.loader for line in page.stack) or not FOLLOWED.search(page.error)
    if end is None or end.time_up:
        return False
    aborted = record.log if end.exit_code == -6 else ""  # torch's watchdog aborts who waits
    if FOLLOWED.search(f"{end.reason} {aborted}"):
        return False
    return end.exit_code is not None and not end.returned


def _vanished(record: Record, gone_s: float) -> bool:
    """Whether it is gone without a word: nobody told it to end, and its page is older than that."""
    page = record.page
    runs = page is not None and page.state in ("running", "joining")
    if not (page and runs and page.hears and page.at_s < gone_s):
        return False
    return not (record.told or record.end or record.crash)


def pending(page: Page) -> Call | None:
    """The collective in which the rank is: the first that is not over.

    One that is followed by a later one of its group that is over has only not been ticked off yet.
    A rank that failed because of a peer was in its last call.
    """
    if page.state == "returned" or not page.calls:
        return None
    if page.state == "failed":
        last, inside = page.calls[-1], _torch_name(page)
        # DDP waits in C++, and a monitored_barrier is not in the record.
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
    """The collective in which an aborted rank was, from its stack alone: number 0, size unknown."""
    own = tuple(line for line in record.crash if line.own)
    inside = [line for line in record.crash if line.torch and line.file.endswith("c10d.py")]
    if not own or not inside:
        return None
    return Call("", 0, inside[0].function, inside[0].function, path=own)


def _in_torch(page: Page) -> bool:
    """Whether torch.distributed is further in than the program's own line."""
    for line in reversed(page.stack):
        if line.own:
            return False
        if line.torch:
            return True
    return False


def _torch_name(page: Page) -> str:
    """The function of torch.distributed that the program called; "" for the wait for one."""
    name = ""
    for line in reversed(page.stack):
        if line.own:
            break
        if line.torch and line.function not in ("wrapper", "wait"):
            name = line.function
    return name


def usual_line(page: Page, line: Line | None) -> str:
    """The innermost function, if it is not the program's own: "select in selectors.py"."""
    inner = page.stack[-1] if page.stack else None
    if inner is None or inner == line:
        return ""
    parts = inner.file.replace("\\", "/").split("/")
    name = "/".join(parts[-2:] if parts[-1] == "__init__.py" else parts[-1:])
    return f"{inner.function} of {name}"
