"""The page that each rank of a recorded launch keeps of itself: where it is, what it called.

FOLDER/rank0.json, rank1.json, …   one page a rank, rewritten four times a second
FOLDER/launch.json                 how each rank ended, by the process that started them
FOLDER/rank0.log, …                the last lines that each rank printed
FOLDER/rank0.crash, rank0.term, …  where it was when it died, or was told to end
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
    """A line of Python on a stack: its file, number, function, and text."""

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
        """Whether it belongs to torch.distributed, or to what notes its messages."""
        file = self.file.replace("\\", "/")
        return "/torch/distributed/" in file or file.endswith("/course_lib/launch/flight.py")

    @property
    def loader(self) -> bool:
        """Whether it belongs to torch's DataLoader."""
        return "/torch/utils/data/" in self.file.replace("\\", "/")

    @property
    def place(self) -> str:
        """For a sentence: "train.py:42"."""
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"


def own_line(stack: Sequence[Line]) -> Line | None:
    """The innermost line of the program itself; `stack` has the innermost line last."""
    return next((line for line in reversed(stack) if line.own), None)


@dataclass(frozen=True)
class Call:
    """One collective as a rank has called it: the `number`-th of its group, counted from 1.

    name: of torch's function, operation: what the backend did ("all_reduce" also for a
    reduce_scatter of gloo); over: this rank need not wait for it any more; at_s: seconds of the
    rank's own clock since 1970; path: the program's own lines that led there, the innermost last;
    root: as a rank of the group, -1 where it is not known; operator: "" for a sum.
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
        """The line of the program that called it; None where it is not known."""
        return self.path[-1] if self.path else None


@dataclass(frozen=True)
class Stack:
    """The lines of the main thread, the innermost last, in how many of the samples."""

    samples: int
    lines: tuple[Line, ...]

    @property
    def waits(self) -> bool:
        """Whether it is inside torch.distributed."""
        return any(line.torch for line in self.lines)


def most_seen(stacks: Iterable[Stack]) -> Line | None:
    """The program's own line at which most samples were taken."""
    seen: Counter[Line] = Counter()
    for stack in stacks:
        if line := own_line(stack.lines):
            seen[line] += stack.samples
    return max(seen, key=lambda line: seen[line], default=None)


@dataclass(frozen=True)
class Page:
    """What one rank knows of itself.

    state: "joining", "running", "returned", "failed" or "absent"; launch: the same for all ranks
    that started together; still_s: for how long it has called no collective, sent or received
    nothing, and ended no step; stack: where its main thread is, the innermost line last; since:
    samples of it in that time, all: in its life; message, peer: "recv" and the rank it receives
    from just now, or "send"; "" and -1 for none; groups: the ranks of each process group; error,
    reason: what it raised, and that in a sentence; hears: SIGTERM would leave a trace.
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

_PATH = 6  # own lines kept of a call
_C10D = "/torch/distributed/distributed_c10d.py"


def call_of(entry: dict[str, Any], source: Callable[[str, int], str] = lambda *_: "") -> Call:
    """One entry as a Call. Raises KeyError, TypeError or ValueError for anything else.

    `source` gives the text of a line, which is not known for records of another machine. Keys:
    torch.distributed.flight_recorder, version 2.10; the root and the operator are the course's own.
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
