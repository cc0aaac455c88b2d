"""Whether this machine can have a Slurm at all."""

import shutil
import sys

from course_lib.launch.two_nodes import search_path
from course_lib.problem import Problem

INSTALL = "apt-get install --no-install-recommends slurm-wlm munge"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")


def obstacle() -> str | None:
    """Why this machine cannot have the cluster, in one sentence; None if it can."""
    if sys.platform != "linux":
        return (
            f"Slurm's daemons are built for Linux and this is {sys.platform}: use a Linux machine"
        )
    missing = [name for name in PROGRAMS if not program(name)]
    if missing:
        return f"{' and '.join(missing)} not found: on Debian or Ubuntu, {INSTALL}"
    return None


def refuse_without_slurm() -> None:
    """Raises Problem where there can be no cluster."""
    if reason := obstacle():
        raise Problem(reason)


def program(name: str) -> str | None:
    """The full path of a program, administrators' folders included; None if there is none."""
    return shutil.which(name, path=search_path())
