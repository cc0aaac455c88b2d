"""The one folder of a cluster: configuration, key, sockets, logs and the state of the jobs."""

import os
from dataclasses import dataclass
from pathlib import Path

from course_lib.home import home
from course_lib.problem import Problem

MARK = "COURSE_CLUSTER"  # in the environment of each daemon: the folder that it belongs to
# A socket's path has at most 107 bytes on Linux, and the longest of ours is
# FOLDER/spool/n1/n1_1000000.4294967295.
_MOST = 70


@dataclass(frozen=True)
class Folder:
    """The paths in it. Raises Problem for a path that is too long for Unix sockets."""

    path: Path

    def __post_init__(self) -> None:
        if len(os.fsencode(self.path)) > _MOST:
            raise Problem(
                f"{self.path} is too long a path for the sockets of a cluster: set COURSE_HOME to "
                f"a folder of at most {_MOST - len('/cluster')} letters"
            )

    @property
    def configuration(self) -> Path:
        """What SLURM_CONF names."""
        return self.path / "slurm.conf"

    @property
    def keeper(self) -> Path:
        """Holds the id of the process that keeps the daemons."""
        return self.path / "keeper.pid"

    @property
    def key(self) -> Path:
        """By which the daemons and their user recognise each other."""
        return self.path / "munge.key"

    @property
    def socket(self) -> Path:
        """Where munged listens."""
        return self.path / "munge.socket"

    @property
    def log(self) -> Path:
        """What each daemon says, a file each."""
        return self.path / "log"

    @property
    def state(self) -> Path:
        """Where slurmctld remembers the jobs."""
        return self.path / "state"

    @property
    def spool(self) -> Path:
        """Where slurmd keeps the scripts of running jobs."""
        return self.path / "spool"

    @property
    def slow(self) -> Path:
        """Holds the Mbit/s between the nodes, where they are limited."""
        return self.path / "mbit"

    @property
    def mbit(self) -> float | None:
        """The limit; None where both nodes share the machine's loopback."""
        return float(self.slow.read_text()) if self.slow.exists() else None

    def make(self) -> None:
        """Create it, empty, for its owner alone. Raises Problem where that is not allowed."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for path in (self.path, self.log, self.state, self.spool):
                path.mkdir(mode=0o700)
        except OSError as error:
            raise Problem(
                f"the folder {self.path} cannot be made ({error.strerror}): set COURSE_HOME to a "
                "folder of yours"
            ) from error


def learners() -> Folder:
    """Where `course cluster up` keeps its cluster."""
    return Folder((home() / "cluster").absolute())
