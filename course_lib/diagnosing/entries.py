"""From an entry of torch's flight record, of gloo's or NCCL's, to a Call."""

from collections.abc import Callable, Sequence
from typing import Any

from course_lib.diagnosing.page import Call, Line

_PATH = 6  # own lines kept of a call
_C10D = "/torch/distributed/distributed_c10d.py"


def no_source(_file: str, _line: int) -> str:
    """For records of another machine: what is written in a line is not known here."""
    return ""


def call_of(entry: dict[str, Any], source: Callable[[str, int], str] = no_source) -> Call:
    """One entry as a Call. Raises KeyError, TypeError or ValueError for anything else.

    `source` gives the text of a line. Keys: torch.distributed.flight_recorder, version 2.10; the
    root and the operator are the course's own.
    """
    frames = tuple(
        Line(str(frame["filename"]), int(frame["line"]), str(frame["name"]))
        for frame in entry.get("frames", ())
    )
    operation = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    path = [frame for frame in frames if frame.own][:_PATH][::-1]
    return Call(
        group=str(entry["process_group"][0]),
        number=int(entry["collective_seq_id"]),
        operation=operation,
        name=_called(frames) or operation,
        sizes=tuple(tuple(int(size) for size in shape) for shape in entry["input_sizes"]),
        dtypes=tuple(str(kind) for kind in entry["input_dtypes"]),
        over=bool(entry.get("retired")) or entry.get("state") == "completed",
        at_s=int(entry["time_created_ns"]) / 1e9,
        path=tuple(
            Line(line.file, line.line, line.function, source(line.file, line.line).strip())
            for line in path
        ),
        root=int(entry.get("root", -1)),
        operator=str(entry.get("operator", "")),
    )


def _called(frames: Sequence[Line]) -> str:
    """The function of torch.distributed that the program called; `frames`: innermost first."""
    name = ""
    for frame in frames:
        if frame.own:
            break
        if frame.file.replace("\\", "/").endswith(_C10D):
            name = frame.function
    return name
