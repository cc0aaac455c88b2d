"""What the parent and its ranks tell each other, in files of one temporary folder per launch."""

import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path

# What `linecache` keeps of a cell: size, no time of change, lines, name.
CellSources = dict[str, tuple[int, float | None, list[str], str]]


@dataclass(frozen=True)
class Job:
    """What the parent hands to every rank. `deadline_s` is on the clock of `time.monotonic()`."""

    call: bytes  # cloudpickle of (function, args)
    ranks: int
    threads: int  # for torch, in each rank
    timeout_s: float
    deadline_s: float
    environment: dict[str, str]
    cell_sources: CellSources = field(default_factory=dict)  # for tracebacks: see runner


@dataclass(frozen=True)
class Report:
    """A rank's last word: a pickled result, or the reason why there is none."""

    time_s: float  # time.monotonic(), which all processes of a machine share
    result: bytes = b""
    reason: str = ""
    traceback: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.reason)


@dataclass(frozen=True)
class Folder:
    """The launch's folder. Its ranks live as long as it exists: see `rank._watch_parent`."""

    path: Path

    @property
    def store(self) -> Path:
        """Where the ranks find each other (no port: nothing to race for)."""
        return self.path / "rendezvous"

    def log(self, rank: int) -> Path:
        """Everything the rank prints."""
        return self.path / f"rank{rank}.log"

    def stack(self, rank: int) -> Path:
        """Where the rank was when its time was up; empty before."""
        return self.path / f"rank{rank}.stack"

    def write_job(self, job: Job) -> None:
        (self.path / "job").write_bytes(pickle.dumps(job))

    def read_job(self) -> Job:
        job: Job = pickle.loads((self.path / "job").read_bytes())
        return job

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

    def _report(self, rank: int) -> Path:
        return self.path / f"rank{rank}.report"
