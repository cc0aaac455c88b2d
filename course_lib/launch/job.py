"""What the parent and its ranks tell each other: variables, and files of one folder per launch.

The folder is readable by its owner alone, so nothing is unpickled that somebody else wrote.
"""

import io
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
import os
from dataclasses import dataclass, field

STORE_VARIABLE = "COURSE_STORE"  # set by launch.run: the file through which its ranks meet
TIMEOUT_VARIABLE = "COURSE_TIMEOUT_S"
STEPS_VARIABLE = "COURSE_STEPS"  # set by launch.run: the file that says how far this rank is
FOLDER_VARIABLE = "COURSE_RECORD"  # set by launch.run, or by hand for torchrun: where pages go
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"  # set by torchrun


_LARGE_BYTES = 64 * 1024  # below, nothing is gained


def pack(value: Any, path: Path) -> None:
    """Write `value` to a file. Raises OSError where there is no room, else what pickling does."""
    with open(path, "wb") as file:
        _packer(file).dump(value)


def unpack(path: Path) -> Any:
    """Read what `pack` has written."""
    with open(path, "rb") as file:
        return pickle.load(file)


def _packer(file: io.BufferedWriter) -> Any:
    from course_lib import pickled_code

    class Packer(pickled_code.Pickler):
        """Code's, with its own way for large tensors."""

        def reducer_override(self, value: Any) -> Any:
            import torch

            if type(value) is torch.Tensor and _is_large_and_plain(value):
                return _reduced(value)
            if isinstance(value, ModuleType) and _only_its_parent_has(value):
                return _part_of_its_parent, (value.__name__,)
            return super().reducer_override(value)

    return Packer(file, protocol=5)


def _is_large_and_plain(tensor: "torch.Tensor") -> bool:
    import torch

    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.numel() * tensor.element_size() >= _LARGE_BYTES
        and tensor.is_contiguous()
        and not tensor.__dict__
    )


def _reduced(tensor: "torch.Tensor") -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import torch

    raw: Any = tensor.detach().view(-1).view(torch.uint8).numpy()
    return _rebuilt, (pickle.PickleBuffer(raw), tensor.dtype, tuple(tensor.shape))


def _only_its_parent_has(module: ModuleType) -> bool:
    """Whether it cannot be imported, like torch._C._functions, which torch's decorators name."""
    parent, _, own = module.__name__.rpartition(".")
    missing = module.__name__ not in sys.modules
    return missing and getattr(sys.modules.get(parent), own, None) is module


def _part_of_its_parent(name: str) -> Any:
    parent, _, own = name.rpartition(".")
    return getattr(import_module(parent), own)


def _rebuilt(raw: bytearray, dtype: "torch.dtype", shape: tuple[int, ...]) -> "torch.Tensor":
    import torch

    return torch.frombuffer(raw, dtype=dtype).view(shape)


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
