"""For whom each rank waits."""

from collections.abc import Mapping, Sequence

from course_lib.diagnosing.evidence import Evidence, Record
from course_lib.diagnosing.standing import Standing

Waits = Mapping[int, tuple[int, ...]]


def members(evidence: Evidence, group: str) -> tuple[int, ...]:
    """The ranks of a process group; all of the launch where no page says it."""
    for record in evidence.records:
        if record.page and (ranks := record.page.groups.get(group)):
            return tuple(rank for rank in ranks if 0 <= rank < len(evidence.records))
    return tuple(record.rank for record in evidence.records)


def last_number(record: Record, group: str) -> int:
    """The number of the last collective that the rank has called in the group; 0 before."""
    calls = record.page.calls if record.page else ()
    return max((call.number for call in calls if call.group == group), default=0)


def waits_for(evidence: Evidence, stand: Sequence[Standing]) -> Waits:
    """For each rank, the ranks that have not arrived where it waits."""
    return {each.rank: _missing(evidence, stand, each) for each in stand}


def _missing(evidence: Evidence, stand: Sequence[Standing], mine: Standing) -> tuple[int, ...]:
    if mine.state in ("message", "locked"):
        return (mine.peer,) if 0 <= mine.peer < len(stand) else ()
    if mine.state == "unseen" and mine.text:
        same = {each.rank for each in stand if each.state == "unseen" and each.text == mine.text}
        return tuple(each.rank for each in stand if each.rank not in same)
    if mine.state == "waiting" and mine.call and mine.call.number:
        call = mine.call
        return tuple(
            rank
            for rank in members(evidence, call.group)
            if last_number(evidence.records[rank], call.group) < call.number
            and not evidence.records[rank].crash
        )
    return ()


def in_circle(waits: Waits) -> list[int]:
    """The ranks that wait for themselves, directly or through others."""
    return [rank for rank in waits if rank in _reached(waits, rank)]


def _reached(waits: Waits, start: int) -> set[int]:
    found: set[int] = set()
    open_: list[int] = list(waits.get(start, ()))
    while open_:
        rank = open_.pop()
        if rank not in found:
            found.add(rank)
            open_ += waits.get(rank, ())
    return found


def reached(waits: Waits) -> list[int]:
    """All ranks for which somebody waits."""
    return sorted({rank for ranks in waits.values() for rank in ranks})
