"""What the parent and its ranks tell each other, in files of one temporary folder per launch.

The folder is readable by its owner alone, so nothing is unpickled that somebody else wrote.
"""

import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.launch.packing import pack, unpack

# What `linecache` keeps of a cell: size, no time of change, lines, name.
CellSources = dict[str, tuple[int, float | None, list[str], str]]


@dataclass(frozen=True)
class Job:
    """What the parent hands to every rank, beside the call.

    `deadline_s` is on the clock of `time.monotonic()`.
    """

    ranks: int
    threads: int  # for torch, in each rank
    timeout_s: float
    deadline_s: float
    environment: dict[str, str]
    directory: str  # the parent's
    path: list[str]  # where the parent finds modules
    arguments: list[str]  # of the parent's command line
    cell_sources: CellSources = field(default_factory=dict)  # for tracebacks: see runner


@dataclass(frozen=True)
class Report:
    """A rank's last word: that its result is ready, or the reason why there is none."""

    time_s: float  # time.monotonic(), which all processes of a machine share
    reason: str = ""
    traceback: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.reason)


@dataclass(frozen=True)
class Folder:
    """The launch's folder."""

    path: Path

    @property
    def store(self) -> Path:
        """Where the ranks find each other (no port: nothing to race for)."""
        return self.path / "rendezvous"

    @property
    def call(self) -> Path:
        """The function and its arguments, packed."""
        return self.path / "call"

    def log(self, rank: int) -> Path:
        """Everything the rank prints."""
        return self.path / f"rank{rank}.log"

    def stack(self, rank: int) -> Path:
        """Where the rank was when its time was up; empty before."""
        return self.path / f"rank{rank}.stack"

    def steps(self, rank: int) -> Path:
        """How far the rank is: see `group.report_step`."""
        return self.path / f"rank{rank}.steps"

    def write_job(self, job: Job) -> None:
        (self.path / "job").write_bytes(pickle.dumps(job))

    def read_job(self) -> Job:
        job: Job = pickle.loads((self.path / "job").read_bytes())
        return job

    def write_result(self, rank: int, result: Any) -> None:
        try:
            pack(result, self._result(rank))
        except BaseException:
            self._result(rank).unlink(missing_ok=True)  # room for the report that says so
            raise

    def read_result(self, rank: int) -> Any:
        return unpack(self._result(rank))

    def write_report(self, rank: int, report: Report) -> None:
        unfinished = self.path / f"rank{rank}.unfinished"
        unfinished.write_bytes(pickle.dumps(report))
        os.replace(unfinished, self._report(rank))  # the parent never reads half a report

    def read_report(self, rank: int) -> Report | None:
        """The rank's report, or None while there is none."""
        try:
            report: Report = pickle.loads(self._report(rank).read_bytes())
        except FileNotFoundError:
            return None
        return report

    def _result(self, rank: int) -> Path:
        return self.path / f"rank{rank}.result"

    def _report(self, rank: int) -> Path:
        return self.path / f"rank{rank}.report"
