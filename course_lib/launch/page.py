"""The page that each rank of a recorded launch writes: its stack, its state, its collectives.

FOLDER/rank0.json, rank1.json, …   one page per rank, rewritten four times a second
FOLDER/launch.json                 how each rank ended, written by the process that started them
FOLDER/rank0.log, …                the last lines that each rank printed
FOLDER/rank0.crash, rank0.term, …  its stack when it crashed, or received SIGTERM or SIGINT
FOLDER/nccl_trace_rank_0, …        torch's own dumps, which are read as well
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_NOT_OWN = re.compile(
    r"/site-packages/|/dist-packages/|/lib(64)?/python3|/versions/3\.|^<(?!ipython)|/course_lib/launch/",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?:/|^)course_lib/(?!launch/)")


@dataclass(frozen=True)
class Line:
    """A Python frame on a stack: its file, line number, function, and source text."""

    file: str
    line: int
    function: str
    text: str = ""

    @property
    def own(self) -> bool:
        """Whether it belongs to the program, not to Python, torch, another package or a launch."""
        file = self.file.replace("\\", "/")
        return bool(_NAME.search(file)) or not _NOT_OWN.search(file)

    @property
    def torch(self) -> bool:
        """Whether it belongs to torch.distributed, or to the wrappers that record its messages."""
        file = self.file.replace("\\", "/")
        return "/torch/distributed/" in file or file.endswith("/course_lib/launch/flight.py")

    @property
    def loader(self) -> bool:
        """Whether it belongs to torch's DataLoader."""
        return "/torch/utils/data/" in self.file.replace("\\", "/")

    @property
    def place(self) -> str:
        """File name and line number, such as "train.py:42"."""
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"


def own_line(stack: Sequence[Line]) -> Line | None:
    """The program's own innermost line, or None; `stack` has the innermost line last."""
    return next((line for line in reversed(stack) if line.own), None)


@dataclass(frozen=True)
class Call:
    """One collective that a rank called: the `number`-th of its group, counted from 1.

    name: torch's function; operation: what the backend ran ("all_reduce" also for gloo's
    reduce_scatter); over: whether it has finished on this rank; at_s: seconds since 1970 on the
    rank's own clock; path: the program's own lines that led to it, innermost last; root: a rank of
    the group, -1 if unknown; operator: "" for a sum.
    """

    group: str
    number: int
    operation: str
    name: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    over: bool = False
    at_s: float = 0.0
    path: tuple[Line, ...] = ()
    root: int = -1
    operator: str = ""

    @property
    def where(self) -> Line | None:
        """The line of the program that called it; None if unknown."""
        return self.path[-1] if self.path else None


@dataclass(frozen=True)
class Stack:
    """A stack of the main thread, innermost line last, and the number of samples that had it."""

    samples: int
    lines: tuple[Line, ...]

    @property
    def waits(self) -> bool:
        """Whether any of its lines is in torch.distributed."""
        return any(line.torch for line in self.lines)


def most_seen(stacks: Iterable[Stack]) -> Line | None:
    """The program's own line with the most samples; None if there is none."""
    seen: Counter[Line] = Counter()
    for stack in stacks:
        if line := own_line(stack.lines):
            seen[line] += stack.samples
    return max(seen, key=lambda line: seen[line], default=None)


@dataclass(frozen=True)
class Page:
    """The recorded state of one rank.

    state: "joining", "running", "returned", "failed" or "absent"; launch: an id shared by all ranks
    of the launch; still_s: seconds without a collective, a message, or the end of a step; stack: of
    the main thread, innermost line last; since: its stack samples during `still_s`, all: since the
    start; message, peer: "send" or "recv" and the other rank, if it waits for one, else "" and -1;
    groups: the ranks of each process group; error, reason: the exception it raised, and an
    explanation; hears: whether SIGTERM would leave a stack dump.
    """

    rank: int
    world: int
    launch: str = ""
    state: str = "running"
    at_s: float = 0.0
    still_s: float = 0.0
    step: int = 0
    steps: int = 0
    error: str = ""
    reason: str = ""
    peer: int = -1
    message: str = ""
    hears: bool = False
    stack: tuple[Line, ...] = ()
    since: tuple[Stack, ...] = ()
    all: tuple[Stack, ...] = ()
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()


NO_PAGE = Page(-1, 0, state="absent")

_PATH = 6  # the program's own lines kept for each call
_C10D = "/torch/distributed/distributed_c10d.py"


def call_of(entry: dict[str, Any], source: Callable[[str, int], str] = lambda *_: "") -> Call:
    """Convert a flight-recorder entry to a Call; raises KeyError, TypeError or ValueError.

    `source(file, line)` returns the text of a line; it is unknown for records of another machine.
    Keys: torch.distributed.flight_recorder, version 2.10; `flight` adds root and operator.
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
    """Name of the torch.distributed function that the program called; frames innermost first."""
    name = ""
    for frame in frames:
        if frame.own:
            break
        if frame.file.replace("\\", "/").endswith(_C10D):
            name = frame.function
    return name
