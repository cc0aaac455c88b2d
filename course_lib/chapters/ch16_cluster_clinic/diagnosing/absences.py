"""Diagnoses of ranks that the others wait for: dead, hung, loading data, finished, not started."""

import re
from collections.abc import Sequence

from course_lib.chapters.ch16_cluster_clinic.diagnosing.finding import (
    Finding,
    accused,
    at,
    found,
    named,
    opening,
    the,
)
from course_lib.chapters.ch16_cluster_clinic.diagnosing.reading import DUMP
from course_lib.chapters.ch16_cluster_clinic.diagnosing.standing import (
    STILL_S,
    Evidence,
    Record,
    Standing,
    in_circle,
    pending,
    waits_for,
)
from course_lib.launch.page import Line, most_seen, own_line

_WORKER_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_STOPPED_S = 3.0  # longer than a launcher takes to end the others after one died
_WORKER = "lost a worker of its DataLoader"
_WORKER_REMEDY = (
    "Run it with num_workers=0 to see the error itself; a worker that was killed ran out of memory"
    " or of shared memory."
)
_PRINTED = "Look at the last lines that it printed."
# Known errors: the cause, a pattern of what the rank raised or printed, what happened (words that
# follow "rank 1"), and the remedy.
_RAISED = (
    (
        "port", r"EADDRINUSE|[Aa]ddress already in use", "found its port taken",
        "End the program that listens there (`ss -ltnp` names it), or take another MASTER_PORT; 0"
        " lets the system choose.",
    ),
    (
        "interface", r"Unable to find address for: (?P<name>\S+)",  # gloo's words
        "found no network interface called {name}",
        "Name one that `ip -brief address` shows on that machine in GLOO_SOCKET_IFNAME"
        " (NCCL_SOCKET_IFNAME), or leave it unset.",
    ),
    (
        "shared memory", r"(?i)/dev/shm|shared memory|Bus error|file </torch_",
        "found too little shared memory",
        "Give the container more (`docker run --shm-size=8g` or `--ipc=host`), or take fewer"
        " workers in the DataLoader.",
    ),
    ("loader", r"DataLoader worker", _WORKER, _WORKER_REMEDY),
    (
        "memory",
        r"(?i)OutOfMemory|out of memory|can't allocate memory|not enough memory|MemoryError",
        "ran out of memory", "Take a smaller batch or model, shard it, or recompute activations.",
    ),
)  # fmt: skip


def ended(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """The first rank that raised, was killed or exited by itself."""
    dead = [one for one in stand if one.state == "ended"]
    # gloo aborts a rank that loses a peer, so prefer ranks that ended in another way.
    dead = [e for e in dead if evidence.records[e.rank].fatal != "Aborted"] or dead
    if not dead:
        return None
    first = min(dead, key=lambda one: evidence.records[one.rank].page.at_s)
    ranks = [one.rank for one in dead if _alike(one) == _alike(first)]
    record = evidence.records[first.rank]
    line = _worker_line(record) or first.line
    # The page (state file) of a killed rank may be a quarter of a second old.
    killed = record.page.state not in ("failed", "returned")
    where = f", last seen{at(line)}" if killed and line else at(line)
    cause, what, remedy = _raised(record) or _killed(record)
    sentence = f"{accused(ranks)} {what}{where}{_others(stand, ranks)}"
    return found(cause, sentence, remedy, ranks, {first.rank: line})


def _alike(each: Standing) -> object:
    """A key that is equal for the same error on several ranks: text without digits, and line."""
    return re.sub(r"\d+", "", each.text), each.line


def _raised(record: Record) -> tuple[str, str, str] | None:
    """(cause, what happened, remedy) of what a rank raised or printed; None if neither."""
    error, reason = record.page.error, record.page.reason
    known, _, advice = reason.partition(": ")
    for cause, pattern, what, remedy in _RAISED:
        if match := re.search(pattern, error or record.log):
            what = what.format(**match.groupdict())
            return cause, known if known.startswith(what) else what, remedy
    if not error:
        return None
    if any(line.loader for line in record.page.stack):
        return "loader", f"{_WORKER} and raised {_first_line(error)}", _WORKER_REMEDY
    if reason and not reason.startswith("raised"):
        return "error", known, f"{advice[:1].upper()}{advice[1:]}." if advice else ""
    return "error", f"raised {_first_line(error)}", "Correct that."


def _killed(record: Record) -> tuple[str, str, str]:
    """(cause, what happened, remedy) of a rank that raised nothing, from how its process ended."""
    code = record.end.exit_code if record.end else None
    if code is None and record.fatal:
        return "killed", f"died of a fatal error ({record.fatal})", _PRINTED
    if code is None and record.behind_s >= _STOPPED_S:
        return (
            "killed", f"stopped or died {record.behind_s:.0f} s before the others",
            "Look for a SIGSTOP, a debugger, a frozen container, and for the system's"
            " out-of-memory killer (`dmesg | grep -i oom`).",
        )  # fmt: skip
    if code is None:
        return (
            "killed", "died, or left by an exit that Python does not see",
            "torchrun prints its exit code: at -9 look for the system's out-of-memory killer"
            " (`dmesg | grep -i oom`) and for a limit of the container.",
        )  # fmt: skip
    if code == -9:
        return (
            "killed", "died of SIGKILL",
            "Look for the system's out-of-memory killer (`dmesg | grep -i oom`), for a limit of the"
            " container, and for who else may have ended it.",
        )  # fmt: skip
    if code < 0:
        return "killed", f"died of signal {-code}", _PRINTED
    what = record.page.reason or f"ended with exit code {code}"
    return "left", what, f"{_PRINTED[:-1]}, and for a sys.exit."


def _first_line(error: str) -> str:
    line = error.strip().splitlines()[0]
    return line if len(line) <= 160 else line[:157] + "..."


def _worker_line(record: Record) -> Line | None:
    """The program's line at which a DataLoader worker raised, from the traceback in the error."""
    error = record.page.error
    if "Original Traceback" not in error:
        return None
    matches = _WORKER_LINE.finditer(error)
    return own_line([Line(each["file"], int(each["line"]), each["name"]) for each in matches])


def _others(stand: Sequence[Standing], but: Sequence[int]) -> str:
    """A phrase such as ", while ranks 0 and 2 waited in all_reduce number 3"; "" if none did."""
    calls = {e.rank: e.call for e in stand if e.rank not in but and e.state == "waiting" and e.call}
    if not calls:
        return ""
    first = next(iter(calls.values()))
    same = [rank for rank, call in calls.items() if the(call) == the(first)]
    return f", while {named(same)} waited in {the(first)}{at(first.where)}"


def never_came(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """Ranks without a page (state file), while the others wait in the rendezvous."""
    joining = [each.rank for each in stand if each.state == "joining"]
    silent = [each.rank for each in stand if each.state == "silent"]
    if not joining or len(joining) + len(silent) < len(stand) or not silent:
        return None
    # If a launcher started all ranks, or no rank reached its time limit, they may just be slow.
    started = any(evidence.records[rank].end for rank in silent)
    if started or not any(stand[rank].text for rank in joining):
        return None
    world = len(evidence.records)
    sentence = (
        f"{named(silent).capitalize()} never came: {named(joining)} of {world} waited to begin, and"
        f" {named(silent)} left no page"
    )
    remedy = (
        f"Start {len(silent)} more, correct WORLD_SIZE (now {world}), or look whether the"
        " missing node reaches MASTER_ADDR and MASTER_PORT."
    )
    return found("never came", sentence, remedy, silent)


def circle(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """Deadlock: ranks that send or receive in a cycle, each waiting for the next."""
    ring = in_circle(waits_for(evidence, stand))
    if not any(stand[rank].state == "message" for rank in ring):
        return None
    parts = "; ".join(f"rank {rank} {stand[rank].does}{at(stand[rank].line)}" for rank in ring)
    remedy = (
        "Break the circle: let one rank send first, or start all with isend and irecv"
        " (batch_isend_irecv) and wait afterwards."
    )
    lines = {rank: stand[rank].line for rank in ring}
    sentence = f"{named(ring).capitalize()} wait for each other in a circle: {parts}"
    return found("circle", sentence, remedy, (), lines)


def absent(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """The rank at the end of the chain of waits: others wait for it, and it waits for none."""
    waits = waits_for(evidence, stand)
    roots = [rank for rank in sorted(set().union(*waits.values())) if not waits[rank]]
    if in_own_code := [rank for rank in roots if stand[rank].state == "own"]:
        return _in_its_own_code(evidence, stand, in_own_code)
    if late := [rank for rank in roots if _only_a_dump(evidence.records[rank])]:
        return _late(evidence, stand, late)
    if finished := [rank for rank in roots if stand[rank].state == "returned"]:
        return _finished(evidence, stand, finished)
    return None


def _only_a_dump(record: Record) -> bool:
    """Whether the record is a flight recorder dump alone, with all collectives completed."""
    page = record.page
    return page.launch == DUMP and not page.message and not pending(page)


def _late(evidence: Evidence, stand: Sequence[Standing], late: list[int]) -> Finding:
    calls = evidence.records[late[0]].page.calls
    call = calls[-1] if calls else None
    was = f"; its last was {the(call)}{at(call.where)}" if call and len(late) == 1 else ""
    sentence = f"{accused(late)} did not come to the next collective{was}{_others(stand, late)}"
    remedy = "A dump holds no stacks: look with `py-spy dump --pid PID` where it is while it hangs."
    return found("late", sentence, remedy, late, {late[0]: call.where if call else None})


def _in_its_own_code(
    evidence: Evidence, stand: Sequence[Standing], own: list[int]
) -> Finding | None:
    first = max(own, key=lambda rank: stand[rank].still_s)
    each, page = stand[first], evidence.records[first].page
    if each.still_s < STILL_S:
        return None
    line = most_seen(page.since) or each.line
    seconds = f"for {each.still_s:.1f} s"
    if any(frame.loader for frame in page.stack):
        sentence = (
            f"{accused([first])} waited for its DataLoader{at(line)} {seconds}"
            f"{_others(stand, [first])}"
        )
        remedy = (
            "A worker reads, or hangs: look at the data set's __getitem__ and at its file system,"
            " with `py-spy dump` on the worker, or with num_workers=0."
        )
        return found("loader", sentence, remedy, (first,), {first: line})
    inside = f", in {each.text}" if each.text else ""
    same = [
        rank
        for rank in own
        if rank == first or (stand[rank].line == each.line and stand[rank].still_s >= STILL_S)
    ]
    sentence = f"{accused(same)} stayed{at(line)}{inside} {seconds}{_others(stand, [first])}"
    remedy = f"Look at what keeps {named(same)} there, before the collective."
    return found("stuck", sentence, remedy, same, {first: line})


def _finished(evidence: Evidence, stand: Sequence[Standing], finished: list[int]) -> Finding | None:
    calls = {e.rank: e.call for e in stand if e.state == "waiting" and e.call and e.call.number}
    ranks = list(calls)
    records = [evidence.records[rank] for rank in ranks]
    # A rank that lost a peer, or was signalled, outlived the others.
    lost = any(record.signalled or record.page.state == "failed" for record in records)
    if not ranks or not (lost or max(stand[rank].still_s for rank in ranks) >= STILL_S):
        return None
    call = calls[ranks[0]]
    remedy = (
        "Give every rank the same number of updates (drop_last, or an equal number of batches), and"
        " the same collectives."
    )
    lines = {rank: stand[rank].line for rank in ranks}
    if len(finished) > len(ranks):
        sentence = (
            f"{accused(ranks)} called {the(call)}{at(call.where)}, which {named(finished)}, who"
            " have finished, did not"
        )
        return found("extra", sentence, remedy, ranks, lines)
    blamed = finished if len(finished) < len(ranks) else []
    first = stand[finished[0]]
    how = f" ({first.text}{at(first.line)})" if first.text else ""
    sentence = (
        f"{opening(blamed, finished, [*finished, *ranks])} finished{how} without {the(call)}, in"
        f" which {named(ranks)} still waited{at(call.where)}"
    )
    return found("finished early", sentence, remedy, blamed, lines)
