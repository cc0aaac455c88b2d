"""A rank that is slow but not stuck: it is last at the collectives, and the others wait there."""

from collections.abc import Sequence
from statistics import median

from course_lib.diagnosing.evidence import Evidence
from course_lib.diagnosing.finding import Finding, accused, at
from course_lib.diagnosing.page import Line, Page, own_line
from course_lib.diagnosing.standing import Standing

_LEAST_CALLS = 6
_LAST_SHARE = 0.8  # of the collectives that it is late for, it is the last in so many
_LATE_SHARE = 0.25  # of the time between two updates, by which it is late
_LEAST_LATE_S = 0.01
_WAITS_LITTLE, _WAIT_MUCH = 0.4, 0.4  # shares of the samples in torch.distributed


def straggler(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """The rank that came last, almost always, by much, and hardly waited itself.

    Clocks of several machines differ, so that times alone accuse nobody: the others must have been
    seen waiting as well.
    """
    pages = [record.page for record in evidence.records if record.page]
    if len(pages) < 2 or len(pages) < len(stand):
        return None
    arrivals = _arrivals(pages)
    if len(arrivals) < _LEAST_CALLS:
        return None
    late = [times for times in arrivals if max(times) - min(times) > _LEAST_LATE_S]
    if len(late) < _LEAST_CALLS // 2:
        return None
    last = [times.index(max(times)) for times in late]
    rank = max(set(last), key=last.count)
    late_s = median(times[rank] - min(times) for times in late)
    lasted_s = max(arrivals[-1]) - min(arrivals[0])
    if last.count(rank) < _LAST_SHARE * len(late) or late_s * len(late) < _LATE_SHARE * lasted_s:
        return None
    waits = [_waiting_share(page) for page in pages]
    others = [share for other, share in enumerate(waits) if other != rank]
    if waits[rank] > _WAITS_LITTLE or min(others) < _WAIT_MUCH:
        return None
    line = _busy_line(pages[rank])
    sentence = (
        f"{accused([rank])} is slow, not stuck: it came last to {last.count(rank)} of {len(late)}"
        f" collectives, {late_s * 1000:.0f} ms behind the first, and spends its time{at(line)};"
        f" the others wait for it {100 * median(others):.0f} % of theirs"
    )
    remedy = (
        "Look for more data or work on this rank, another program on its processor, or a slower"
        " device (clock, temperature, link)."
    )
    return Finding("straggler", sentence, remedy, (rank,), {rank: line} if line else {})


def _arrivals(pages: Sequence[Page]) -> list[list[float]]:
    """When each rank, in their order, called the collectives that all of them have called."""
    times = [{(call.group, call.number): call.at_s for call in page.calls} for page in pages]
    common = set.intersection(*(set(each) for each in times))
    ordered = sorted(common, key=lambda key: times[0][key])
    return [[each[key] for each in times] for key in ordered]


def _waiting_share(page: Page) -> float:
    """The share of its samples that were taken inside torch.distributed."""
    total = sum(stack.samples for stack in page.all)
    waiting = sum(stack.samples for stack in page.all if any(line.torch for line in stack.lines))
    return waiting / total if total else 0.0


def _busy_line(page: Page) -> Line | None:
    """The program's own line where it was seen most often, outside torch.distributed."""
    seen: dict[Line, int] = {}
    for stack in page.all:
        line = own_line(stack.lines)
        if line and not any(each.torch for each in stack.lines):
            seen[line] = seen.get(line, 0) + stack.samples
    return max(seen, key=lambda line: seen[line], default=None)
