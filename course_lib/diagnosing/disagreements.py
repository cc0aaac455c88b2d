"""Ranks that called something else: another collective, size, order, number of calls or group."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_lib.diagnosing.finding import (
    Finding,
    accused,
    at,
    begins,
    elements,
    named,
    opening,
    size,
    the,
    verb,
)
from course_lib.diagnosing.page import Call, Line
from course_lib.diagnosing.standing import (
    Evidence,
    Record,
    Standing,
    crashed_call,
    in_circle,
    members,
    waits_for,
)

_SIZES = re.compile(r"data size doesn't match expected size|another number of bytes")
# All ranks send the same number of elements; in a gather or a scatter the root has more, and what
# is gathered or sent to all may differ by rank.
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


@dataclass(frozen=True)
class Meeting:
    """The first collective in which the calls of the ranks do not fit together."""

    group: str
    number: int
    calls: dict[int, Call]
    evidence: Evidence

    @property
    def camps(self) -> list[list[int]]:
        """The ranks whose calls fit together, the largest camp first."""
        found: dict[object, list[int]] = {}
        known = all(call.root >= 0 for call in self.calls.values())
        for rank, call in self.calls.items():
            more = (call.root, call.operator) if known else ()
            found.setdefault((_signature(call), more), []).append(rank)
        # Of an aborted rank only the line is known: it belongs to those who called there, and to
        # neither side where both did.
        for rank, call in [pair for pair in self.calls.items() if not pair[1].number]:
            alone = next(key for key, ranks in found.items() if rank in ranks)
            same = [
                key
                for key, ranks in found.items()
                if any(self.calls[r].number and _site(self.calls[r]) == _site(call) for r in ranks)
            ]
            if same:
                found[alone].remove(rank)
                found = {key: ranks for key, ranks in found.items() if ranks}
            if len(same) == 1:
                found[same[0]].append(rank)
        for ranks in found.values():  # first those of whom most is known
            ranks.sort(key=lambda rank: (not self.calls[rank].number, rank))
        return sorted(found.values(), key=lambda ranks: (-len(ranks), ranks))

    @property
    def odd(self) -> list[int]:
        """The ranks outside the one largest camp; none if there is no such camp."""
        camps = self.camps
        if len(camps) > 1 and len(camps[0]) == len(camps[1]):
            return []
        return sorted(rank for camp in camps[1:] for rank in camp)


def _signature(call: Call) -> object:
    if not call.number:
        return ("aborted", _site(call))
    if call.operation not in _EQUAL_SIZES:
        return call.operation
    return (call.operation, sum(map(elements, call.sizes)), call.dtypes)


def _site(call: Call) -> tuple[str, int] | None:
    return (call.where.file, call.where.line) if call.where else None


def first_meeting(evidence: Evidence, stand: Sequence[Standing]) -> Meeting | None:
    """The first call, by its time, on which the ranks of a group do not agree."""
    found = (_in_group(evidence, stand, group) for group in _groups(evidence))
    return min((meeting for meeting in found if meeting), key=_time, default=None)


def _time(meeting: Meeting) -> float:
    return min(call.at_s for call in meeting.calls.values() if call.number)


def _groups(evidence: Evidence) -> set[str]:
    pages = [record.page for record in evidence.records if record.page]
    return {call.group for page in pages for call in page.calls}


def _in_group(evidence: Evidence, stand: Sequence[Standing], group: str) -> Meeting | None:
    by_number: dict[int, dict[int, Call]] = {}
    for rank in members(evidence, group):
        for call in _calls(evidence.records[rank], group):
            by_number.setdefault(call.number, {})[rank] = call
    if not by_number:
        return None
    aborted = {
        each.rank: each.call
        for each in stand
        if each.call
        and not each.call.number
        and each.rank in members(evidence, group)
        and _groups_at(evidence, _site(each.call)) <= {group}
    }
    last = max(by_number)
    for rank, call in aborted.items():
        # In the last call, unless those who called from its line have gone on by one since.
        before = by_number.get(last - 1, {})
        there = rank not in before and _site(call) in map(_site, before.values())
        at_last = _site(call) in map(_site, by_number[last].values())
        by_number[last - 1 if there and not at_last else last].setdefault(rank, call)
    for number in sorted(by_number):
        calls = by_number[number]
        meeting = Meeting(group, number, calls, evidence)
        if len(meeting.camps) > 1:
            return meeting
    return None


def _groups_at(evidence: Evidence, site: tuple[str, int] | None) -> set[str]:
    """The groups in which ranks have called from there."""
    pages = [record.page for record in evidence.records if record.page]
    return {call.group for page in pages for call in page.calls if _site(call) == site}


def _calls(record: Record, group: str) -> list[Call]:
    calls = record.page.calls if record.page else ()
    return [call for call in calls if call.group == group]


# --- the causes, in the order in which they are asked -----------------------------------------


def disagreement(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """Calls that do not fit together, and in which way."""
    meeting = first_meeting(evidence, stand)
    if meeting is None:
        return None
    odd = meeting.odd
    # Two ranks: neither is accused, and both sides are said.
    one, other = (
        (odd[0], meeting.camps[0][0]) if odd else (meeting.camps[0][0], meeting.camps[1][0])
    )
    for judge in _JUDGES:
        if finding := judge(meeting, one, other):
            return finding
        if not odd and (finding := judge(meeting, other, one)):
            return finding
    return None


Judge = Callable[[Meeting, int, int], Finding | None]


def _extra_before(meeting: Meeting, one: int, other: int) -> Finding | None:
    """Its calls are those of the other rank, with an extra one before them."""
    mine, others = (_sites(meeting.evidence.records[rank], meeting.group) for rank in (one, other))
    start = next((n for n in sorted(mine) if n in others and mine[n] != others[n]), 0)
    if not start or start >= meeting.number:
        return None
    known = set(others.values())
    more = 1
    while start + more < meeting.number and mine.get(start + more) not in known:
        more += 1  # as a forward pass that broadcasts several buffers
    late = range(start, meeting.number + 1 - more)
    if any(mine.get(n + more) != others[n] for n in late if n in others):
        return None
    call = _call(meeting.evidence.records[one], meeting.group, start)
    if call is None or call.where is None:
        return None
    return _extra(meeting, one, other, call, more)


def _extra_now(meeting: Meeting, one: int, other: int) -> Finding | None:
    """A barrier where the others exchange data replaces nothing: it is one call too many."""
    mine, others = meeting.calls[one], meeting.calls[other]
    if mine.operation != "barrier" or others.operation == "barrier":
        return None
    return _extra(meeting, one, other, mine)


def _extra(meeting: Meeting, one: int, other: int, call: Call, more: int = 1) -> Finding:
    mine, theirs = meeting.calls[one], meeting.calls[other]
    side, rest = _two_sides(meeting, one)
    which = verb(rest, ", which calls", ", which call")
    late = "" if call is mine else f", so that now {the(mine)}{at(mine.where)} meets"
    sentence = (
        f"{_opening(meeting, side)} {verb(side, 'calls', 'call')} {call.name}{at(call.where)},"
        f" {'one call' if more == 1 else f'{more} calls'} more than {named(rest)}{late or which}"
        f" {theirs.name}{at(theirs.where)}"
    )
    remedy = (
        "Call it on every rank or on none, as a collective behind `if rank == 0:` hangs; or it left"
        f" out {theirs.name}, as after an exception that was caught."
    )
    return _found("extra", meeting, sentence, remedy, {one: call.where, other: theirs.where})


def _swapped(meeting: Meeting, one: int, other: int) -> Finding | None:
    """It is already where the others went next in earlier rounds."""
    mine, theirs = meeting.calls[one], meeting.calls[other]
    sites = _sites(meeting.evidence.records[other], meeting.group)
    here, there = _site(mine), _site(theirs)
    if here is None or there is None or here == there:
        return None
    past = {number: site for number, site in sites.items() if number < meeting.number}
    before = past.get(meeting.number - 1)
    nexts = {past[n + 1] for n in past if n + 1 in past and past[n] == before}
    if nexts:  # what has come after the last call that all made
        departs = there in nexts and here not in nexts and here in past.values()
    else:
        departs = any(past[n] == there and past.get(n + 1) == here for n in past)
    if not departs:
        return None
    fork = _fork(mine, theirs)
    side, rest = _two_sides(meeting, one)
    sentence = (
        f"{_opening(meeting, side)} {verb(side, 'calls', 'call')} {mine.name}{at(fork)}"
        f" where {named(rest)} {verb(rest, 'calls', 'call')} {theirs.name}{at(theirs.where)};"
        f" in the rounds before, {theirs.name} came first"
    )
    remedy = (
        f"Keep one order on all ranks: {theirs.name} was left out, or comes later there. Look for"
        " an order taken from a set, or for a condition that differs."
    )
    return _found("order", meeting, sentence, remedy, {one: fork, other: theirs.where})


def _fork(mine: Call, theirs: Call) -> Line | None:
    """The outermost line at which the two ways to the calls part."""
    for line, other in zip(mine.path, theirs.path, strict=False):
        if (line.file, line.line) != (other.file, other.line):
            return line
    return mine.where


def _other_kind(meeting: Meeting, one: int, other: int) -> Finding | None:
    mine, theirs = meeting.calls[one], meeting.calls[other]
    if mine.operation == theirs.operation:
        return None
    sentence = _sides(meeting, one, other, mine.name, theirs.name)
    remedy = f"One of the two is in the wrong place: {SAME}."
    return _found("collective", meeting, sentence, remedy, {one: mine.where, other: theirs.where})


def _other_size(meeting: Meeting, one: int, other: int) -> Finding | None:
    mine, theirs = meeting.calls[one], meeting.calls[other]
    words = [f"{call.name} of {size(call) or 'another size'}" for call in (mine, theirs)]
    sentence = _sides(meeting, one, other, *words)
    elsewhere = _site(mine) and _site(theirs) and _site(mine) != _site(theirs)
    remedy = OTHER_LINE if elsewhere else SHAPE
    return _found("size", meeting, sentence, remedy, {one: mine.where, other: theirs.where})


def _other_root(meeting: Meeting, one: int, other: int) -> Finding | None:
    """Another root, or another operator."""
    mine, theirs = meeting.calls[one], meeting.calls[other]
    words = [
        f"{call.name} with root {call.root}" if mine.root != theirs.root else
        f"{call.name} of {call.operator or 'SUM'}"
        for call in (mine, theirs)
    ]  # fmt: skip
    if words[0] == words[1] or min(mine.root, theirs.root) < 0:  # not known, as of the aborted
        return None
    sentence = _sides(meeting, one, other, *words)
    remedy = "Pass the same root (`src`, `dst`) and operator on every rank."
    return _found("root", meeting, sentence, remedy, {one: mine.where, other: theirs.where})


def _sides(meeting: Meeting, one: int, other: int, mine: str, theirs: str) -> str:
    side, rest = _two_sides(meeting, one)
    return (
        f"{_opening(meeting, side)} {verb(side, 'calls', 'call')} {mine}"
        f"{at(meeting.calls[one].where)} while {named(rest)} {verb(rest, 'calls', 'call')} {theirs}"
        f"{at(meeting.calls[other].where)}"
    )


def _two_sides(meeting: Meeting, one: int) -> tuple[list[int], list[int]]:
    """The odd ranks, or those who agree with `one`, and the others."""
    side = meeting.odd or next(camp for camp in meeting.camps if one in camp)
    return side, sorted(rank for camp in meeting.camps for rank in camp if rank not in side)


def _opening(meeting: Meeting, side: list[int]) -> str:
    """The beginning of the sentence, up to what that side does."""
    return opening(meeting.odd, side, [rank for camp in meeting.camps for rank in camp])


def _found(
    cause: str, meeting: Meeting, sentence: str, remedy: str, lines: dict[int, Line | None]
) -> Finding:
    known = {rank: line for rank, line in lines.items() if line}
    return Finding(cause, sentence, remedy, tuple(meeting.odd), known)


_JUDGES: tuple[Judge, ...] = (
    _extra_before, _swapped, _extra_now, _other_kind, _other_root, _other_size,
)  # fmt: skip


def _sites(record: Record, group: str) -> dict[int, tuple[str, int] | None]:
    return {call.number: _site(call) for call in _calls(record, group)}


def _call(record: Record, group: str, number: int) -> Call | None:
    return next((call for call in _calls(record, group) if call.number == number), None)


def sizes_said(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """Ranks that were aborted over a size, and whose calls are not known."""
    ranks = [
        record.rank
        for record in evidence.records
        if _SIZES.search(record.log + (record.end.reason if record.end else "") + record.error)
        # which gloo aborts for little else
        or (record.end is None and (crashed_call(record) or record.outside))
    ]
    if not ranks:
        return None
    lines = {rank: line for rank in ranks if (line := stand[rank].line)}
    if _others_agree(evidence, stand, ranks):
        sentence = (
            f"{accused(ranks)} received another number of bytes than expected"
            f"{at(lines.get(ranks[0]))}, where all the others pass the same size"
        )
        return Finding("size", sentence, SHAPE, tuple(ranks), lines)
    sentence = (
        f"{begins(ranks)} received another number of bytes than expected"
        f"{at(next(iter(lines.values()), None))}, and nothing shows whose call is wrong"
    )
    remedy = f"Start it with check_collectives=True, or without async_op, to see who: {SAME}."
    return Finding("size", sentence, remedy, (), lines)


def _others_agree(evidence: Evidence, stand: Sequence[Standing], ranks: list[int]) -> bool:
    """Whether one rank was aborted in the gather in which all others pass the same size."""
    mine = crashed_call(evidence.records[ranks[0]])
    others = [each.call for each in stand if each.rank not in ranks and each.call]
    return (
        len(ranks) == 1
        and mine is not None
        and len(others) == len(stand) - 1 > 1
        and len({(call.group, call.number, call.sizes, call.dtypes) for call in others}) == 1
        and all(call.number and _site(call) == _site(mine) for call in others)
        and mine.operation == others[0].name == "all_gather"
    )


def other_group(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """Ranks that wait for each other, in different groups."""
    calls = {
        each.rank: each.call
        for each in stand
        if each.state == "waiting" and each.call and each.call.number
    }
    circle = in_circle(waits_for(evidence, stand))
    if len({calls[rank].group for rank in circle if rank in calls}) < 2:
        return None
    groups: dict[str, list[int]] = {}
    for rank, call in calls.items():
        groups.setdefault(call.group, []).append(rank)
    camps = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks))
    tie = len(camps[0]) == len(camps[1])
    odd = [] if tie else sorted(rank for camp in camps[1:] for rank in camp)
    one, other = (camps[1][0], camps[0][0])
    side, rest = (odd or camps[1]), camps[0]
    mine, theirs = calls[one], calls[other]
    sentence = (
        f"{opening(odd, side, calls)} {verb(side, 'calls', 'call')} {mine.name}{at(mine.where)}"
        f" in the group of {named(members(evidence, mine.group))} while {named(rest)}"
        f" {verb(rest, 'calls', 'call')}"
        f" {theirs.name}{at(theirs.where)} in the group of {named(members(evidence, theirs.group))}"
    )
    if set(members(evidence, mine.group)) == set(members(evidence, theirs.group)):
        sentence += ", which is another one of the same ranks"
    remedy = "Pass the same `group=` on all ranks, and use the groups in one order everywhere."
    lines = {rank: line for rank in (one, other) if (line := calls[rank].where)}
    return Finding("subgroup", sentence, remedy, tuple(odd), lines)
