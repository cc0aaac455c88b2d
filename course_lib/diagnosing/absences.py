"""Ranks that the others wait for: they died, hang, are reading, have finished, or never came."""

import re
from collections.abc import Sequence

from course_lib.diagnosing.finding import (
    Finding,
    accused,
    at,
    begins,
    named,
    opening,
    the,
    verb,
)
from course_lib.diagnosing.page import Line, Page, own_line
from course_lib.diagnosing.reading import DUMP
from course_lib.diagnosing.standing import (
    STILL_S,
    Evidence,
    Record,
    Standing,
    in_circle,
    pending,
    reached,
    waits_for,
)

_WORKER = re.compile(r"DataLoader worker")
_WORKER_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_PORT = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_INTERFACE = re.compile(r"Unable to find address for: (?P<name>\S+)")  # gloo's words
_SHARED = re.compile(r"/dev/shm|shared memory|Bus error|file </torch_", re.IGNORECASE)
_ABORTED = "Aborted"  # faulthandler's word for SIGABRT
_MEMORY = re.compile(
    r"OutOfMemory|out of memory|can't allocate memory|not enough memory|MemoryError", re.IGNORECASE
)


_STOPPED_S = 3.0  # a launcher ends the others sooner after one died


def ended(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """A rank that raised, was killed or left by itself: the first that did."""
    dead = [each for each in stand if each.state == "ended"]
    # gloo aborts who loses a peer: whoever ended in another way is the cause.
    dead = [e for e in dead if evidence.records[e.rank].fatal != _ABORTED] or dead
    if not dead:
        return None
    first = min(dead, key=lambda each: _when(evidence.records[each.rank]))
    same = [each.rank for each in dead if _alike(each) == _alike(first)]
    record = evidence.records[first.rank]
    cause, what, remedy = _death(record)
    if len(same) == len(stand):
        remedy = remedy.replace("; the other ranks only waited", "")
    line = _worker_line(record) or first.line
    # The page of a rank that was killed may be a quarter of a second old.
    killed = not (record.page and record.page.state in ("failed", "returned"))
    place = f", last seen{at(line)}," if killed and line else at(line)
    others = _others(stand, same)
    if len(same) > 1 and what.startswith("was "):
        what = f"were {what.removeprefix('was ')}"
    sentence = f"{accused(same)} {what}{place}{others}".replace(",,", ",").rstrip(",")
    return Finding(cause, sentence, remedy, tuple(same), {first.rank: line} if line else {})


def _alike(each: Standing) -> object:
    """What the same error on several ranks has in common: all but its numbers."""
    return re.sub(r"\d+", "", each.text), each.line


def _when(record: Record) -> float:
    return record.page.at_s if record.page else 0.0


def _death(record: Record) -> tuple[str, str, str]:
    """The cause, what happened in words that follow "rank 1", and the remedy."""
    error = record.page.error if record.page else ""
    said = error or record.log
    reason = record.page.reason if record.page else ""
    code = record.end.exit_code if record.end else None
    if _PORT.search(said):
        return (
            "port", "found its port taken",
            "End the program that listens there (`ss -ltnp` names it), or take another"
            " MASTER_PORT; 0 lets the system choose.",
        )  # fmt: skip
    if interface := _INTERFACE.search(said):
        return (
            "interface", f"found no network interface called {interface['name']}",
            "Name one that `ip -brief address` shows on that machine in GLOO_SOCKET_IFNAME"
            " (NCCL_SOCKET_IFNAME), or leave it unset.",
        )  # fmt: skip
    if _SHARED.search(said):
        return (
            "shared memory", "found too little shared memory",
            "Give the container more (`docker run --shm-size=8g` or `--ipc=host`), or take fewer"
            " workers in the DataLoader.",
        )  # fmt: skip
    if _WORKER.search(error) or (
        error and record.page and any(line.loader for line in record.page.stack)
    ):
        raised = "" if _WORKER.search(error) else f" and raised {_first_line(error)}"
        return (
            "loader", f"lost a worker of its DataLoader{raised}",
            "Run it with num_workers=0 to see the error itself; a worker that was killed ran out of"
            " memory or of shared memory.",
        )  # fmt: skip
    if _MEMORY.search(said):
        what, _, remedy = reason.partition(": ")
        known = what.startswith("ran out of memory")
        return (
            "memory", what if known else "ran out of memory",
            "Take a smaller batch or model, shard it, or recompute activations.",
        )  # fmt: skip
    if error and reason and not reason.startswith("raised"):
        what, _, remedy = reason.partition(": ")
        return "error", what, f"{remedy[:1].upper()}{remedy[1:]}." if remedy else ""
    if error:
        return "error", f"raised {_first_line(error)}", "Mend that; the other ranks only waited."
    if code is None and record.fatal:
        return (
            "killed", f"died of a fatal error ({record.fatal})",
            "Look at the last lines that it printed.",
        )  # fmt: skip
    if code is None and record.behind_s >= _STOPPED_S:
        return (
            "killed", f"was stopped or killed {record.behind_s:.0f} s before the others",
            "Look for a SIGSTOP, a debugger, a frozen container, and for the system's"
            " out-of-memory killer (`dmesg | grep -i oom`).",
        )  # fmt: skip
    if code is None:
        return (
            "killed", "was killed, or left by an exit that Python does not see",
            "torchrun prints its exit code: at -9 look for the system's out-of-memory killer"
            " (`dmesg | grep -i oom`) and for a limit of the container.",
        )  # fmt: skip
    if code == -9:
        return (
            "killed", "was killed by SIGKILL",
            "Look for the system's out-of-memory killer (`dmesg | grep -i oom`), for a limit of the"
            " container, and for who else may have ended it.",
        )  # fmt: skip
    if code < 0:
        return "killed", f"was ended by signal {-code}", "Look at the last lines that it printed."
    return (
        "left", reason or f"ended with exit code {code}",
        "Look at the last lines that it printed, and for a sys.exit.",
    )  # fmt: skip


def _first_line(error: str) -> str:
    line = error.strip().splitlines()[0]
    return line if len(line) <= 160 else line[:157] + "..."


def _worker_line(record: Record) -> Line | None:
    """Where a worker of the DataLoader raised, from the traceback in the error's text."""
    error = record.page.error if record.page else ""
    if "Original Traceback" not in error:
        return None
    found = [
        Line(match["file"], int(match["line"]), match["name"])
        for match in _WORKER_LINE.finditer(error)
    ]
    return next((line for line in reversed(found) if line.own), None)


def _others(stand: Sequence[Standing], but: Sequence[int]) -> str:
    """ ", while ranks 0 and 2 wait in all_reduce number 3 at train.py:57"; nothing if none does."""
    waiting = [
        each for each in stand if each.rank not in but and each.state == "waiting" and each.call
    ]
    if not waiting:
        return ""
    call = waiting[0].call
    assert call
    same = [
        each.rank
        for each in waiting
        if each.call and (each.call.name, each.call.number) == (call.name, call.number)
    ]
    return f", while {named(same)} {verb(same, 'waits', 'wait')} in {the(call)}{at(call.where)}"


def never_came(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """Ranks without a page, while the others wait to begin."""
    joining = [each.rank for each in stand if each.state == "joining"]
    silent = [each.rank for each in stand if each.state == "silent"]
    if not joining or len(joining) + len(silent) < len(stand) or not silent:
        return None
    # Where a launcher started all ranks, or nobody has waited to its limit, they may just be slow.
    started = any(evidence.records[rank].end for rank in silent)
    if started or not any(stand[rank].text for rank in joining):
        return None
    world = len(evidence.records)
    sentence = (
        f"{begins(silent)} never came: {named(joining)} of {world} {verb(joining, 'waits', 'wait')}"
        f" to begin, and {named(silent)} left no page"
    )
    remedy = (
        f"Start {len(silent)} more, correct WORLD_SIZE (now {world}), or look whether the"
        " missing node reaches MASTER_ADDR and MASTER_PORT."
    )
    return Finding("never came", sentence, remedy, tuple(silent))


def circle(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """Ranks that send or receive in a circle, each waiting for the next."""
    waits = waits_for(evidence, stand)
    ring = in_circle(waits)
    locked = [rank for rank in ring if stand[rank].state == "locked"]
    if locked:
        return _held(stand, locked)
    messages = [rank for rank in ring if stand[rank].state == "message"]
    if not messages:
        return None
    if tagged := _tags(evidence, stand, messages):
        return tagged
    parts = [_does(stand[rank]) for rank in ring]
    sentence = f"{begins(ring)} wait for each other in a circle: {'; '.join(parts)}"
    remedy = (
        "Break the circle: let one rank send first, or start all with isend and irecv"
        " (batch_isend_irecv) and wait afterwards."
    )
    lines = {rank: line for rank in ring if (line := stand[rank].line)}
    return Finding("circle", sentence, remedy, (), lines)


def _held(stand: Sequence[Standing], locked: list[int]) -> Finding:
    """A rank that holds a lock, and waits for those who wait for the lock."""
    holder = stand[stand[locked[0]].peer]
    waits = [rank for rank in locked if stand[rank].peer == holder.rank]
    what = f"waits in {the(holder.call)}" if holder.call else "waits for them"
    line = stand[waits[0]].line
    sentence = (
        f"{accused([holder.rank])} holds the lock for which {named(waits)}"
        f" {verb(waits, 'waits', 'wait')}{at(line)}, and {what}{at(holder.line)}"
    )
    remedy = "Release a lock before the next collective: who waits for it cannot come there."
    lines = {rank: each for rank in (holder.rank, *waits) if (each := stand[rank].line)}
    return Finding("lock", sentence, remedy, (holder.rank,), lines)


def _tags(evidence: Evidence, stand: Sequence[Standing], ranks: list[int]) -> Finding | None:
    """A send and a receive that would meet, if they had one tag."""
    for one in ranks:
        other = stand[one].peer
        if other not in ranks or stand[other].peer != one or stand[one].text != "send":
            continue
        pages = [evidence.records[rank].page for rank in (one, other)]
        tags = [page.tag for page in pages if page]
        if stand[other].text == "recv" and len(set(tags)) == 2:
            sentence = (
                f"{begins([one, other])} disagree, and nothing shows which is wrong: rank {one}"
                f" sends to rank {other} with tag {tags[0]}{at(stand[one].line)}, which receives"
                f" from rank {one} with tag {tags[1]}{at(stand[other].line)}"
            )
            remedy = "Give the send and its receive one tag."
            lines = {rank: line for rank in (one, other) if (line := stand[rank].line)}
            return Finding("tag", sentence, remedy, (), lines)
    return None


def _does(each: Standing) -> str:
    place = f" at {each.line.place}" if each.line else ""
    if each.state == "message":
        way = "to" if each.text.endswith("send") else "from"
        return f"rank {each.rank} is in {each.text} {way} rank {each.peer}{place}"
    if each.call:
        return f"rank {each.rank} is in {the(each.call)}{place}"
    return f"rank {each.rank} is{place}"


def absent(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """The rank at the end of the chain: others wait for it, and it waits for nobody."""
    waits = waits_for(evidence, stand)
    last = [rank for rank in reached(waits) if not waits[rank]]
    own = [rank for rank in last if stand[rank].state == "own"]
    if own:
        return _in_its_own_code(evidence, stand, own)
    late = [rank for rank in last if _only_a_dump(evidence.records[rank].page)]
    if late:
        return _late(evidence, stand, late)
    finished = [rank for rank in last if stand[rank].state == "returned"]
    if finished:
        return _finished(evidence, stand, finished)
    return None


def _only_a_dump(page: Page | None) -> bool:
    """Whether nothing but its collectives is known, all of them over."""
    return page is not None and page.launch == DUMP and not page.message and not pending(page)


def _late(evidence: Evidence, stand: Sequence[Standing], late: list[int]) -> Finding:
    page = evidence.records[late[0]].page
    call = page.calls[-1] if page and page.calls else None
    was = f"; its last was {the(call)}{at(call.where)}" if call and len(late) == 1 else ""
    sentence = (
        f"{accused(late)} {verb(late, 'has', 'have')} not come to the next collective{was}"
        f"{_others(stand, late)}"
    )
    remedy = "A dump holds no stacks: look with `py-spy dump --pid PID` where it is while it hangs."
    lines = _only(late[0], call.where if call else None)
    return Finding("late", sentence, remedy, tuple(late), lines)


def _in_its_own_code(
    evidence: Evidence, stand: Sequence[Standing], own: list[int]
) -> Finding | None:
    first = max(own, key=lambda rank: stand[rank].still_s)
    each, page = stand[first], evidence.records[first].page
    if page is None or each.still_s < STILL_S:
        return None
    line = _most_seen(page) or each.line
    reads = any(frame.loader for frame in page.stack)
    inside = f", in {each.text}" if each.text and not reads else ""
    others = _others(stand, [first])
    if reads:
        what = f"has been waiting for its DataLoader{at(line)} for {each.still_s:.1f} s{others}"
        remedy = (
            "A worker reads, or hangs: look at the data set's __getitem__ and at its file system,"
            " with `py-spy dump` on the worker, or with num_workers=0."
        )
        return Finding("loader", f"{accused([first])} {what}", remedy, (first,), _only(first, line))
    thread = f" after a thread of it raised {_first_line(page.error)}" if page.error else ""
    same = [
        rank
        for rank in own
        if rank == first or (stand[rank].line == each.line and stand[rank].still_s >= STILL_S)
    ]
    what = (
        f"{verb(same, 'has', 'have')} been{at(line)}{inside} for {each.still_s:.1f} s"
        f"{thread}{others}"
    )
    does = verb(same, "does there before it calls", "do there before they call")
    remedy = f"Look at what {named(same)} {does} the collective."
    lines = _only(first, line)
    return Finding("stuck", f"{accused(same)} {what}", remedy, tuple(same), lines)


def _only(rank: int, line: Line | None) -> dict[int, Line]:
    return {rank: line} if line else {}


def _most_seen(page: Page) -> Line | None:
    """The program's own line at which most samples since its last call were taken."""
    seen: dict[Line, int] = {}
    for stack in page.since:
        if line := own_line(stack.lines):
            seen[line] = seen.get(line, 0) + stack.samples
    return max(seen, key=lambda line: seen[line], default=None)


def _how(each: Standing) -> str:
    """ " (called sys.exit(0) at train.py:12)", where a rank has left by such a call."""
    return f" ({each.text}{at(each.line)})" if each.text else ""


def _finished(evidence: Evidence, stand: Sequence[Standing], finished: list[int]) -> Finding | None:
    waiting = [each for each in stand if each.state == "waiting" and each.call and each.call.number]
    pages = [evidence.records[each.rank].page for each in waiting]
    lost = any(page and page.state == "failed" for page in pages) or any(
        evidence.records[each.rank].told for each in waiting
    )  # the others were already gone
    if not waiting or not (lost or max(each.still_s for each in waiting) >= STILL_S):
        return None
    ranks = [each.rank for each in waiting]
    call = waiting[0].call
    assert call
    remedy = (
        "Give every rank the same number of updates (drop_last, or an equal number of batches), and"
        " the same collectives."
    )
    lines = {rank: line for rank in ranks if (line := stand[rank].line)}
    if len(finished) > len(ranks):
        sentence = (
            f"{accused(ranks)} {verb(ranks, 'calls', 'call')} {the(call)}{at(call.where)}, which"
            f" {named(finished)}, who have finished, did not"
        )
        return Finding("extra", sentence, remedy, tuple(ranks), lines)
    blamed = finished if len(finished) < len(ranks) else []
    sentence = (
        f"{opening(blamed, finished, [*finished, *ranks])} {verb(finished, 'has', 'have')} finished"
        f"{_how(stand[finished[0]])} without {the(call)}, in which {named(ranks)} still"
        f" {verb(ranks, 'waits', 'wait')}"
        f"{at(call.where)}"
    )
    return Finding("finished early", sentence, remedy, tuple(blamed), lines)
