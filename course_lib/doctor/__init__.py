"""`course doctor`: finds what is missing or slow on this machine, with the remedy for it."""

from course_lib.doctor.cluster import examine_cluster
from course_lib.doctor.machine import LOOKS, Finding, notebooks, ranks
from course_lib.problem import Problem

__all__ = ["Finding", "examine", "self_test"]


def examine(start_ranks: bool = True) -> list[Finding]:
    """Check everything the course needs, and this machine's GPUs and network ports.

    `start_ranks=False` skips the slowest check.
    """
    findings = [look() for look in LOOKS]
    return [*findings, *([ranks()] if start_ranks else []), *examine_cluster()]


def self_test() -> None:
    """Start 2 and 4 ranks and print a small table. Raises Problem if some do not start.

    A third line warns if the notebook is in another clone than the package.
    """
    findings, folder = [ranks(2), ranks(4)], notebooks()
    shown = findings if folder.status == "ok" else [*findings, folder]
    print("\n".join(finding.line for finding in shown))
    failed = [finding.name for finding in findings if finding.status == "missing"]
    if failed:
        names = " and ".join(failed)
        raise Problem(f"{names} did not start: run `course doctor` in a terminal to see why")
