"""Diagnoses of mismatched calls: another collective, size, order, number of calls, or group."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from course_lib.chapters.ch16_cluster_clinic.diagnosing.finding import (
    Finding,
    at,
    found,
    named,
    opening,
    size,
    the,
)
from course_lib.chapters.ch16_cluster_clinic.diagnosing.standing import (
    Evidence,
    Standing,
    crashed_call,
    in_circle,
    members,
    waits_for,
)
from course_lib.launch.page import Call, Line

_SIZES = re.compile(r"data size doesn't match expected size|another number of bytes")
# Collectives in which all ranks must pass the same number of elements. In a gather or scatter the
# root has more, and in an all-gather or all-to-all the sizes may differ.
_EQUAL_SIZES = (
    "all_reduce", "allreduce", "broadcast", "reduce", "_allgather_base", "all_gather_into_tensor",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor",
)  # fmt: skip
SAME = (
    "every rank must call the same collectives, in the same order, with the same shapes and types"
)
SHAPE = "Look at the tensor's shape and type: a last batch that is smaller, or a cast."
OTHER_LINE = (
    "The calls come from different lines: look for a condition, or for a loop of another length,"
    " by which some ranks make a call that the others do not."
)

Site = tuple[str, int] | None  # the file and the number of a line


@dataclass(frozen=True)
class Meeting:
    """The calls that ranks made under one sequence number, which may not match.

    `past` has all calls of each rank in the group, by number, including this one.
    """

    number: int
    calls: dict[int, Call]
    past: dict[int, dict[int, Call]]

    @cached_property
    def camps(self) -> list[list[int]]:
        """Sets of ranks whose calls match each other, the largest first."""
        camps: dict[object, list[int]] = {}
        known = all(call.root >= 0 for call in self.calls.values())
        for rank, call in self.calls.items():
            details = (call.root, call.operator) if known else ()
            camps.setdefault((_signature(call), details), []).append(rank)
        # For an aborted rank only the line is known: it joins the camp that called from that line,
        # or no camp if several did.
        for rank, call in self.calls.items():
            if call.number:
                continue
            called_there = [
                r for r, c in self.calls.items() if c.number and _site(c) == _site(call)
            ]
            there = [camp for camp in camps.values() if set(camp) & set(called_there)]
            if there:
                for camp in camps.values():
                    camp[:] = [each for each in camp if each != rank]
            if len(there) == 1:
                there[0].append(rank)
        for camp in camps.values():  # ranks with a known call first
            camp.sort(key=lambda rank: (not self.calls[rank].number, rank))
        return sorted(filter(None, camps.values()), key=lambda camp: (-len(camp), camp))

    @property
    def odd(self) -> list[int]:
        """The ranks outside the largest camp; empty if two camps are largest."""
        return _odd(self.camps)

    def sides(self, one: int) -> tuple[list[int], list[int]]:
        """The odd ranks, or else the camp of rank `one`; and all other ranks."""
        side = self.odd or next(camp for camp in self.camps if one in camp)
        return side, sorted(rank for camp in self.camps for rank in camp if rank not in side)

    def opening(self, one: int) -> str:
        """The start of a sentence, before what the side of rank `one` did."""
        return opening(self.odd, self.sides(one)[0], [r for camp in self.camps for r in camp])


def _odd(camps: list[list[int]]) -> list[int]:
    if len(camps) < 2 or len(camps[0]) == len(camps[1]):
        return []
    return sorted(rank for camp in camps[1:] for rank in camp)


def _signature(call: Call) -> object:
    if not call.number:
        return ("aborted", _site(call))
    if call.operation not in _EQUAL_SIZES:
        return call.operation
    return (call.operation, sum(map(prod, call.sizes)), call.dtypes)


def _site(call: Call) -> Site:
    return (call.where.file, call.where.line) if call.where else None


def _first_meeting(evidence: Evidence, stand: Sequence[Standing]) -> Meeting | None:
    """The earliest call, over all groups, on which the ranks of a group do not agree."""
    groups = {call.group for call in _all_calls(evidence)}
    meetings = filter(None, (_in_group(evidence, stand, group) for group in groups))
    return min(meetings, key=_time, default=None)


def _time(meeting: Meeting) -> float:
    return min(call.at_s for call in meeting.calls.values() if call.number)


def _all_calls(evidence: Evidence) -> list[Call]:
    return [call for record in evidence.records for call in record.page.calls]


def _in_group(evidence: Evidence, stand: Sequence[Standing], group: str) -> Meeting | None:
    past: dict[int, dict[int, Call]] = {}
    by_number: dict[int, dict[int, Call]] = {}
    for rank in members(evidence, group):
        calls = evidence.records[rank].page.calls
        past[rank] = {call.number: call for call in calls if call.group == group}
        for number, call in past[rank].items():
            by_number.setdefault(number, {})[rank] = call
    if not by_number:
        return None
    last = max(by_number)
    # An aborted rank was in the last call, or one before if the ranks at its line have moved on.
    at_last = {_site(call) for call in by_number[last].values()}
    before = by_number.get(last - 1, {})
    for rank, call in ((e.rank, e.call) for e in stand if e.call and not e.call.number):
        groups_there = {c.group for c in _all_calls(evidence) if _site(c) == _site(call)}
        if rank in past and groups_there <= {group}:
            there = rank not in before and _site(call) in map(_site, before.values())
            by_number[last - 1 if there and _site(call) not in at_last else last].setdefault(
                rank, call
            )
    for number in sorted(by_number):
        meeting = Meeting(number, by_number[number], past)
        if len(meeting.camps) > 1:
            return meeting
    return None


# --- the causes, in the order in which they are tried -----------------------------------------


def disagreement(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """The first mismatch of calls, and its kind: extra call, order, or another call."""
    meeting = _first_meeting(evidence, stand)
    if meeting is None:
        return None
    if meeting.odd:
        pairs = [(meeting.odd[0], meeting.camps[0][0])]
    else:  # neither side is at fault for certain: try both
        one, other = meeting.camps[0][0], meeting.camps[1][0]
        pairs = [(one, other), (other, one)]
    judged = (judge(meeting, *pair) for judge in _JUDGES for pair in pairs)
    return next(filter(None, judged), None)


def _extra_before(meeting: Meeting, one: int, other: int) -> Finding | None:
    """Rank `one` made the same calls as `other`, with extra ones inserted before."""
    mine, others = ({n: _site(c) for n, c in meeting.past[rank].items()} for rank in (one, other))
    start = next((n for n in sorted(mine) if n in others and mine[n] != others[n]), 0)
    if not start or start >= meeting.number:
        return None
    more = 1
    while start + more < meeting.number and mine.get(start + more) not in others.values():
        more += 1  # for example a forward pass that broadcasts several buffers
    late = range(start, meeting.number + 1 - more)
    if any(mine.get(n + more) != others[n] for n in late if n in others):
        return None
    call = meeting.past[one][start]
    return _extra(meeting, one, other, call, more) if call.where else None


def _extra_now(meeting: Meeting, one: int, other: int) -> Finding | None:
    """Rank `one` called a barrier where `other` exchanged data: the barrier is an extra call."""
    mine, others = meeting.calls[one], meeting.calls[other]
    if mine.operation != "barrier" or others.operation == "barrier":
        return None
    return _extra(meeting, one, other, mine)


def _extra(meeting: Meeting, one: int, other: int, call: Call, more: int = 1) -> Finding:
    mine, theirs = meeting.calls[one], meeting.calls[other]
    calls = "one call" if more == 1 else f"{more} calls"
    met = ", which called" if call is mine else f", so that now {the(mine)}{at(mine.where)} meets"
    sentence = (
        f"{meeting.opening(one)} called {call.name}{at(call.where)}, {calls} more than"
        f" {named(meeting.sides(one)[1])}{met} {theirs.name}{at(theirs.where)}"
    )
    remedy = (
        "Call it on every rank or on none, as a collective behind `if rank == 0:` hangs; or it left"
        f" out {theirs.name}, as after an exception that was caught."
    )
    return found("extra", sentence, remedy, meeting.odd, {one: call.where, other: theirs.where})


def _swapped(meeting: Meeting, one: int, other: int) -> Finding | None:
    """Rank `one` called now what the others, in earlier rounds, called later."""
    mine, theirs = meeting.calls[one], meeting.calls[other]
    here, there = _site(mine), _site(theirs)
    if here is None or there is None or here == there:
        return None
    past = {n: _site(call) for n, call in meeting.past[other].items() if n < meeting.number}
    before = past.get(meeting.number - 1)
    nexts = {past[n + 1] for n in past if n + 1 in past and past[n] == before}
    if nexts:  # sites that followed the last common call in earlier rounds
        departs = there in nexts and here not in nexts and here in past.values()
    else:
        departs = any(past[n] == there and past.get(n + 1) == here for n in past)
    if not departs:
        return None
    # The outermost line at which the stacks of the two calls differ.
    frames = zip(mine.path, theirs.path, strict=False)
    differing = (m for m, t in frames if (m.file, m.line) != (t.file, t.line))
    fork: Line | None = next(differing, mine.where)
    sentence = (
        f"{meeting.opening(one)} called {mine.name}{at(fork)} where {named(meeting.sides(one)[1])}"
        f" called {theirs.name}{at(theirs.where)}; in the rounds before, {theirs.name} came first"
    )
    remedy = (
        f"Keep one order on all ranks: {theirs.name} was left out, or comes later there. Look for"
        " an order taken from a set, or for a condition that differs."
    )
    return found("order", sentence, remedy, meeting.odd, {one: fork, other: theirs.where})


def _another_call(meeting: Meeting, one: int, other: int) -> Finding:
    """Rank `one` called with another operation, root, operator or size than `other`."""
    mine, theirs = calls = meeting.calls[one], meeting.calls[other]
    known = min(mine.root, theirs.root) >= 0  # unknown for aborted ranks
    if mine.operation != theirs.operation:
        cause, words = "collective", [call.name for call in calls]
        remedy = f"One of the two is in the wrong place: {SAME}."
    elif known and (mine.root, mine.operator) != (theirs.root, theirs.operator):
        cause, words = "root", [f"{call.name} with root {call.root}" for call in calls]
        if mine.root == theirs.root:
            words = [f"{call.name} of {call.operator or 'SUM'}" for call in calls]
        remedy = "Pass the same root (`src`, `dst`) and operator on every rank."
    else:
        cause, words = "size", [f"{call.name} of {size(call) or 'another size'}" for call in calls]
        elsewhere = _site(mine) and _site(theirs) and _site(mine) != _site(theirs)
        remedy = OTHER_LINE if elsewhere else SHAPE
    sentence = (
        f"{meeting.opening(one)} called {words[0]}{at(mine.where)} while"
        f" {named(meeting.sides(one)[1])} called {words[1]}{at(theirs.where)}"
    )
    return found(cause, sentence, remedy, meeting.odd, {one: mine.where, other: theirs.where})


_JUDGES: tuple[Callable[[Meeting, int, int], Finding | None], ...] = (
    _extra_before, _swapped, _extra_now, _another_call,
)  # fmt: skip


def sizes_said(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """Ranks aborted because of a size mismatch, whose calls are not known."""
    ranks = [
        record.rank
        for record in evidence.records
        if _SIZES.search(record.log + (record.end.reason if record.end else "") + record.error)
        # gloo aborts a rank for hardly any other reason
        or (record.end is None and (crashed_call(record) or record.outside))
    ]
    if not ranks:
        return None
    lines = {rank: stand[rank].line for rank in ranks}
    where = at(next(filter(None, lines.values()), None))
    sentence = (
        f"{named(ranks).capitalize()} received another number of bytes than expected{where}, and"
        " nothing shows whose call is wrong"
    )
    remedy = f"Start it with check_collectives=True, or without async_op, to see who: {SAME}."
    return found("size", sentence, remedy, (), lines)


def other_group(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """Deadlock of ranks that wait for each other in different process groups."""
    calls = {e.rank: e.call for e in stand if e.state == "waiting" and e.call and e.call.number}
    ring = in_circle(waits_for(evidence, stand))
    if len({calls[rank].group for rank in ring if rank in calls}) < 2:
        return None
    groups: dict[str, list[int]] = {}
    for rank, call in calls.items():
        groups.setdefault(call.group, []).append(rank)
    camps = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks))
    odd, one, other = _odd(camps), camps[1][0], camps[0][0]
    words = [
        f"called {calls[rank].name}{at(calls[rank].where)} in the group of"
        f" {named(members(evidence, calls[rank].group))}"
        for rank in (one, other)
    ]
    mine, theirs = (set(members(evidence, calls[rank].group)) for rank in (one, other))
    sentence = (
        f"{opening(odd, odd or camps[1], calls)} {words[0]} while {named(camps[0])} {words[1]}"
        f"{', which is another one of the same ranks' if mine == theirs else ''}"
    )
    remedy = "Pass the same `group=` on all ranks, and use the groups in one order everywhere."
    lines = {rank: calls[rank].where for rank in (one, other)}
    return found("subgroup", sentence, remedy, odd, lines)
