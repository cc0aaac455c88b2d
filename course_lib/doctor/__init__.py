"""`course doctor`: what is missing or slow on this machine, in plain words, and the remedy."""

from collections.abc import Callable

from course_lib.doctor.cluster import examine_cluster
from course_lib.doctor.machine import (
    REINSTALL,
    Finding,
    browser,
    cores,
    gloo,
    gpus,
    loopback,
    memory,
    nccl,
    notebooks,
    packages,
    pdf,
    progress_folder,
    python,
    ranks,
    shared_memory,
    slurm,
    torch_build,
    widgets,
)
from course_lib.problem import Problem

__all__ = ["Finding", "examine", "self_test"]


def examine(start_ranks: bool = True) -> list[Finding]:
    """Look at everything the course needs, and at the GPUs and ports that there are.

    `start_ranks=False` skips the slowest part.
    """
    looks: list[Callable[[], Finding]] = [python, packages, widgets, torch_build, gloo, nccl, gpus]
    looks += [cores, memory, shared_memory, loopback, browser, pdf, notebooks]
    looks += [progress_folder, slurm]
    if start_ranks:
        looks.append(ranks)
    return [_safely(look) for look in looks] + examine_cluster()


def _safely(look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except Exception as error:  # one odd machine must not hide the other findings
        name, said = look.__name__.replace("_", " "), f"{type(error).__name__}: {error}"
        return Finding(name, "missing", f"could not be examined ({said})", REINSTALL)


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
