"""The diagnosis: try all causes in order, take the first that fits, or report "don't know"."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from course_lib.chapters.ch16_cluster_clinic.diagnosing.absences import (
    absent,
    circle,
    ended,
    never_came,
)
from course_lib.chapters.ch16_cluster_clinic.diagnosing.disagreements import (
    disagreement,
    other_group,
    sizes_said,
)
from course_lib.chapters.ch16_cluster_clinic.diagnosing.finding import (
    HOW_TO_RECORD,
    Finding,
    accused,
    at,
    found,
    named,
    the,
)
from course_lib.chapters.ch16_cluster_clinic.diagnosing.standing import (
    STILL_S,
    Evidence,
    Standing,
    standings,
)
from course_lib.launch.page import NO_PAGE, Page, most_seen

_LEAST_CALLS = 6
_LAST_SHARE = 0.8  # least share of the late collectives in which the straggler is the last
_LATE_SHARE = 0.25  # least share of the elapsed time by which it is late in total
_LEAST_LATE_S = 0.01
_WAITS_LITTLE, _WAIT_MUCH = 0.4, 0.4  # most and least share of samples in torch.distributed


def straggler(evidence: Evidence, stand: Sequence[Standing]) -> Finding | None:
    """The rank that almost always arrives last, by a large margin, and hardly waits itself.

    Clocks of several machines differ, so arrival times alone are not enough: samples of the other
    ranks' stacks must also show that they wait.
    """
    pages = [record.page for record in evidence.records]
    if len(stand) < 2 or NO_PAGE in pages:
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
    line = most_seen(stack for stack in pages[rank].all if not stack.waits)
    sentence = (
        f"{accused([rank])} is slow, not stuck: it came last to {last.count(rank)} of {len(late)}"
        f" collectives, {late_s * 1000:.0f} ms behind the first, and spends its time{at(line)};"
        f" the others wait for it {100 * median(others):.0f} % of theirs"
    )
    remedy = (
        "Look for more data or work on this rank, another program on its processor, or a slower"
        " device (clock, temperature, link)."
    )
    return found("straggler", sentence, remedy, (rank,), {rank: line})


def _arrivals(pages: Sequence[Page]) -> list[list[float]]:
    """The arrival times in seconds, by rank, of each collective that all ranks have called."""
    times = [{(call.group, call.number): call.at_s for call in page.calls} for page in pages]
    common = set.intersection(*(set(each) for each in times))
    ordered = sorted(common, key=lambda key: times[0][key])
    return [[each[key] for each in times] for key in ordered]


def _waiting_share(page: Page) -> float:
    """The share of the rank's stack samples that are inside torch.distributed."""
    total = sum(stack.samples for stack in page.all)
    return sum(stack.samples for stack in page.all if stack.waits) / (total or 1)


Cause = Callable[[Evidence, Sequence[Standing]], Finding | None]
# Mismatched calls come first: they kill ranks later, and not always the rank at fault.
CAUSES: tuple[Cause, ...] = (
    disagreement, ended, sizes_said, never_came, other_group, circle, absent, straggler,
)  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The finding, a line of text for each rank, and notes on what could not be read."""

    finding: Finding
    ranks: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def report(self) -> str:
        """The text of the diagnosis: sentence and remedy, the ranks, the notes."""
        said = f"{self.finding.sentence}. {self.finding.remedy}".strip()
        return "\n".join([said, *(["", *self.ranks] if self.ranks else []), *self.notes])


def diagnose(evidence: Evidence) -> Diagnosis:
    """Diagnose the records; "don't know" and "nothing wrong" are findings as well."""
    stand = standings(evidence)
    lines = tuple(_line(each) for each in stand)
    for cause in CAUSES:
        if finding := cause(evidence, stand):
            return Diagnosis(finding, lines, evidence.notes)
    return Diagnosis(_nothing(evidence, stand), lines, evidence.notes)


def _nothing(evidence: Evidence, stand: Sequence[Standing]) -> Finding:
    if all(record.page == NO_PAGE for record in evidence.records):
        return Finding("unknown", "Don't know: no rank left a page here", HOW_TO_RECORD)
    if stand and all(each.state == "returned" for each in stand):
        return Finding("nothing", "Nothing wrong found: every rank has finished")
    silent = [each.rank for each in stand if each.state == "silent"]
    if silent:
        return Finding(
            "unknown",
            f"Don't know: {named(silent)} left no page",
            "Bring the files of all ranks into one folder.",
        )
    if all(each.still_s < STILL_S for each in stand):
        return Finding(
            "unknown",
            "Don't know: no rank had stood still for a second when the record ended",
            "Let it hang for longer before you end it, or look whether a rank was ended by hand.",
        )
    calls = {(each.call.group, each.call.number) for each in stand if each.call}
    if len(calls) == 1 and all(each.state == "waiting" for each in stand):
        call = next(each.call for each in stand if each.call)
        return Finding(
            "unknown",
            f"Don't know: all ranks are in {the(call)}{at(call.where)}, and their calls fit",
            "Look at what lies between them: interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME),"
            " firewall, link.",
        )
    return Finding(
        "unknown",
        "Don't know: the records do not show for whom the ranks wait",
        "Look at each rank with `py-spy dump --pid PID` while it hangs.",
    )


def _line(each: Standing) -> str:
    """One line of text on what a rank does, and for how long."""
    where = "" if each.state == "returned" else at(each.line)
    since = f", for {each.still_s:.1f} s" if each.still_s >= STILL_S else ""
    return f"  rank {each.rank} {each.does}{where}{since}"
