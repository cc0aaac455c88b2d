"""One finding out of all causes, and a line for each rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_lib.diagnosing.absences import absent, circle, ended, never_came
from course_lib.diagnosing.disagreements import disagreement, other_group, sizes_said
from course_lib.diagnosing.evidence import Evidence
from course_lib.diagnosing.finding import HOW_TO_RECORD, Finding, at, named, the
from course_lib.diagnosing.standing import STILL_S, Standing, standings
from course_lib.diagnosing.stragglers import straggler

Cause = Callable[[Evidence, Sequence[Standing]], Finding | None]
# Calls that do not fit come first: ranks that die of them die later, and not always the wrong one.
CAUSES: tuple[Cause, ...] = (
    disagreement, ended, sizes_said, never_came, other_group, circle, absent, straggler,
)  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The finding, a line for each rank, and what could not be read."""

    finding: Finding
    ranks: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def report(self) -> str:
        """The sentence, the remedy, then the ranks."""
        said = f"{self.finding.sentence}. {self.finding.remedy}".strip()
        return "\n".join([said, *(["", *self.ranks] if self.ranks else []), *self.notes])


def diagnose(evidence: Evidence) -> Diagnosis:
    """What the records say; "don't know" and "nothing wrong" are findings as well."""
    stand = standings(evidence)
    lines = tuple(_line(each) for each in stand)
    for cause in CAUSES:
        if finding := cause(evidence, stand):
            return Diagnosis(finding, lines, evidence.notes)
    return Diagnosis(_nothing(evidence, stand), lines, evidence.notes)


def _nothing(evidence: Evidence, stand: Sequence[Standing]) -> Finding:
    if not evidence.pages:
        return Finding(
            "unknown",
            "Don't know: no rank left a page here",
            HOW_TO_RECORD,
        )
    if stand and all(each.state == "returned" for each in stand):
        many = f"all {len(stand)} ranks have" if len(stand) > 1 else "the one rank has"
        return Finding("nothing", f"Nothing wrong found: {many} finished")
    silent = [each.rank for each in stand if each.state == "silent"]
    if silent:
        return Finding(
            "unknown",
            f"Don't know: {named(silent)} left no page, so that nothing is known of where"
            f" {'it was' if len(silent) == 1 else 'they were'}",
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
    """What one rank does, on one line."""
    what = {
        "ended": "ended by itself",
        "returned": "has finished",
        "joining": "waits to begin",
        "waiting": f"is in {the(each.call)}" if each.call else "was aborted",
        "message": f"is in {each.text} with rank {each.peer}",
        "locked": f"waits for a lock that rank {each.peer} holds",
        "unseen": "waits for something that is not recorded",
        "own": "is in its own code",
        "silent": "left no page",
    }[each.state]
    place = "" if each.state == "returned" else at(each.line)
    since = f", for {each.still_s:.1f} s" if each.still_s >= STILL_S else ""
    return f"  rank {each.rank} {what}{place}{since}"
