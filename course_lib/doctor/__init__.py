"""`course doctor`: what is missing or slow on this machine, in plain words, and the remedy."""

from course_lib.doctor.cluster import examine_cluster
from course_lib.doctor.machine import LOOKS, Finding, notebooks, ranks
from course_lib.problem import Problem

__all__ = ["Finding", "examine", "self_test"]


def examine(start_ranks: bool = True) -> list[Finding]:
    """Look at everything the course needs, and at the GPUs and ports that there are.

    `start_ranks=False` skips the slowest part.
    """
    findings = [look() for look in LOOKS]
    return [*findings, *([ranks()] if start_ranks else []), *examine_cluster()]


def self_test() -> None:
    """Start 2 and 4 ranks and print a small table. Raises Problem when some do not start.

    A third line warns where the notebook belongs to another clone than the package.
    """
    findings, folder = [ranks(2), ranks(4)], notebooks()
    shown = findings if folder.status == "ok" else [*findings, folder]
    print("\n".join(finding.line for finding in shown))
    failed = [finding.name for finding in findings if finding.status == "missing"]
    if failed:
        names = " and ".join(failed)
        raise Problem(f"{names} did not start: run `course doctor` in a terminal to see why")
