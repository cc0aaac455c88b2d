"""How the parent and its ranks communicate: variables, and files in one folder per launch.

Only the owner can access the folder, so no file of another user is ever unpickled.
"""

import contextlib
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

STORE_VARIABLE = "COURSE_STORE"  # set by launch.run: the file of the ranks' rendezvous
TIMEOUT_VARIABLE = "COURSE_TIMEOUT_S"
STEPS_VARIABLE = "COURSE_STEPS"  # set by launch.run: the file with this rank's progress
FOLDER_VARIABLE = "COURSE_RECORD"  # set by launch.run, or by hand for torchrun: folder of pages
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"  # set by torchrun


_LARGE_BYTES = 64 * 1024  # below this size nothing is gained


def pack(value: Any, path: Path) -> None:
    """Pickle `value` to a file. Raises OSError if the disk is full, else what pickling raises."""
    from course_lib.pickled_code import Pickler

    class Packer(Pickler):
        """Pickles a large tensor as raw bytes, without the copies that torch makes."""

        def reducer_override(self, value: Any) -> Any:
            import torch

            if type(value) is torch.Tensor and not value.requires_grad and not vars(value):
                # Tensors without raw bytes of their own (sparse, conjugate) are left to torch.
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
    """Read a value that `pack` has written."""
    with open(path, "rb") as file:
        return pickle.load(file)


# linecache's entry for each cell: size, modification time (None), lines, name.
CellSources = dict[str, tuple[int, float | None, list[str], str]]


@dataclass(frozen=True)
class Job:
    """The settings that the parent passes to every rank, apart from the call itself.

    `deadline_s` is on the clock of `time.monotonic()`.
    """

    ranks: int
    threads: int  # of torch, in each rank
    timeout_s: float
    deadline_s: float
    environment: dict[str, str]
    directory: str  # the parent's working directory
    path: list[str]  # the parent's sys.path
    arguments: list[str]  # the parent's sys.argv
    cell_sources: CellSources = field(default_factory=dict)  # for tracebacks: see runner


@dataclass(frozen=True)
class Report:
    """What a rank reports at its end: that its result is ready, or why there is none."""

    time_s: float  # time.monotonic(), which all processes of a machine share
    reason: str = ""
    traceback: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.reason)


@dataclass(frozen=True)
class Folder:
    """The folder of one launch.

    It has `job`, `call` (the function and its arguments), `store` (a FileStore for the rendezvous:
    no port, so no race for one), and for each rank its `log` (stdout and stderr), `stack` (a dump
    at the deadline; empty before), `steps` (its progress), `result` and `report`.
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
        """The file of `rank` of this kind: "log", "stack", "steps", "result" or "report"."""
        return self.path / f"rank{rank}.{kind}"

    def text(self, rank: int, kind: str) -> str:
        """The text of that file; "" if it does not exist."""
        path = self.of(rank, kind)
        return path.read_text(errors="replace") if path.exists() else ""

    def write_result(self, rank: int, result: Any) -> None:
        path = self.of(rank, "result")
        try:
            pack(result, path)
        except BaseException:
            path.unlink(missing_ok=True)  # makes room on the disk for the report of the failure
            raise

    def write_report(self, rank: int, report: Report) -> None:
        unfinished = self.of(rank, "unfinished")
        unfinished.write_bytes(pickle.dumps(report))
        os.replace(unfinished, self.of(rank, "report"))  # atomic: never half a report

    def read_report(self, rank: int) -> Report | None:
        """The rank's report; None if it has not written one yet."""
        try:
            report: Report = unpack(self.of(rank, "report"))
        except FileNotFoundError:
            return None
        return report
