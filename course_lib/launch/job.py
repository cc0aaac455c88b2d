"""What the parent and its ranks tell each other: variables, and files of one folder per launch.

The folder is readable by its owner alone, so nothing is unpickled that somebody else wrote.
"""

import contextlib
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

STORE_VARIABLE = "COURSE_STORE"  # set by launch.run: the file through which its ranks meet
TIMEOUT_VARIABLE = "COURSE_TIMEOUT_S"
STEPS_VARIABLE = "COURSE_STEPS"  # set by launch.run: the file that says how far this rank is
FOLDER_VARIABLE = "COURSE_RECORD"  # set by launch.run, or by hand for torchrun: where pages go
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"  # set by torchrun


_LARGE_BYTES = 64 * 1024  # below, nothing is gained


def pack(value: Any, path: Path) -> None:
    """Write `value` to a file. Raises OSError where there is no room, else what pickling does."""
    from course_lib.pickled_code import Pickler

    class Packer(Pickler):
        """Writes a large tensor as its own bytes, without the copies that torch makes."""

        def reducer_override(self, value: Any) -> Any:
            import torch

            if type(value) is torch.Tensor and not value.requires_grad and not vars(value):
                # What has no bytes of its own (sparse, conjugate) is left to torch.
                with contextlib.suppress(RuntimeError, TypeError):
                    raw: Any = value.view(-1).view(torch.uint8).numpy()
                    if raw.nbytes >= _LARGE_BYTES:
                        return _tensor, (pickle.PickleBuffer(raw), value.dtype, tuple(value.shape))
            return super().reducer_override(value)

    with open(path, "wb") as file:
        Packer(file, protocol=5).dump(value)


def _tensor(raw: bytearray, dtype: "torch.dtype", shape: tuple[int, ...]) -> "torch.Tensor":
    import torch

    return torch.frombuffer(raw, dtype=dtype).view(shape)


def unpack(path: Path) -> Any:
    """Read what `pack` has written."""
    with open(path, "rb") as file:
        return pickle.load(file)


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
    """The launch's folder.

    In it are `job`, `call` (the function and its arguments), `store` (where the ranks find each
    other: no port, nothing to race for), and for each rank its `log` (all that it prints), `stack`
    (where it was when its time was up; empty before), `steps` (how far it is), `result`, `report`.
    """

    path: Path

    @property
    def store(self) -> Path:
        return self.path / "rendezvous"

    @property
    def call(self) -> Path:
        return self.path / "call"

    @property
    def job(self) -> Path:
        return self.path / "job"

    def of(self, rank: int, kind: str) -> Path:
        """The file of that kind of a rank."""
        return self.path / f"rank{rank}.{kind}"

    def text(self, rank: int, kind: str) -> str:
        """What is in it; "" where there is none."""
        path = self.of(rank, kind)
        return path.read_text(errors="replace") if path.exists() else ""

    def write_result(self, rank: int, result: Any) -> None:
        path = self.of(rank, "result")
        try:
            pack(result, path)
        except BaseException:
            path.unlink(missing_ok=True)  # room for the report that says so
            raise

    def write_report(self, rank: int, report: Report) -> None:
        unfinished = self.of(rank, "unfinished")
        unfinished.write_bytes(pickle.dumps(report))
        os.replace(unfinished, self.of(rank, "report"))  # the parent never reads half a report

    def read_report(self, rank: int) -> Report | None:
        """The rank's report, or None while there is none."""
        try:
            report: Report = unpack(self.of(rank, "report"))
        except FileNotFoundError:
            return None
        return report
