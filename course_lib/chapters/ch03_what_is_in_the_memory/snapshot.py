"""Snapshots of GPU memory: written in torch's format, read as untrusted data, and categorised.

The format is that of torch.cuda.memory._snapshot(): segments of memory with their blocks, and for
each device a trace of the allocator's actions. Source: torch/cuda/memory.py, `_snapshot`.

A block's category follows from where it was allocated and when it was freed. Its stack tells the
phase of its allocation. Allocated and freed in forward: temporary. Allocated in forward and freed
in backward: an intermediate result.
"""

import io
import json
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, groupby
from typing import Any, NamedTuple

from course_lib.theory.inputs.units import MIB, format_bytes
from course_lib.theory.memory.step_timeline import StepMoment, StepTimeline
from course_lib.validation import told


class Frame(NamedTuple):
    """One frame of a stack."""

    filename: str
    line: int
    name: str


class BlockEvent(NamedTuple):
    """Block number `block` is allocated ("alloc") or freed ("free"); innermost frame first.

    For a free, the size is ignored.
    """

    action: str
    block: int
    size_bytes: int
    frames: tuple[Frame, ...] = ()


# --- writing a file -----------------------------------------------------------------------------

ROUND_BYTES = 512  # the allocator's smallest block
SEGMENT_BYTES = 2 * MIB
_START = 0x7F0000000000


def snapshot_pickle(events: Iterable[tuple[Any, ...]]) -> bytes:
    """Content of a snapshot file with these events: BlockEvents or tuples of their four fields.

    All blocks are in one segment, each in the first gap that is large enough, rounded up to 512 B.
    torch.cuda._memory_viz and pytorch.org/memory_viz can read the file.
    """
    trace: list[dict[str, Any]] = []
    live: dict[int, dict[str, Any]] = {}
    end = _START

    def note(action: str, address: int, size: int, frames: Any) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": 0}
        trace.append({**entry, "time_us": len(trace), "frames": frames})

    for event in (BlockEvent(*each) for each in events):
        frames = [Frame(*frame)._asdict() for frame in event.frames]
        if event.action == "alloc":
            size = -(-max(event.size_bytes, 1) // ROUND_BYTES) * ROUND_BYTES
            address = next(
                gap for gap, until in _gaps(live.values()) if until is None or until - gap >= size
            )
            live[event.block] = {
                "address": address,
                "size": size,
                "requested_size": event.size_bytes,
                "state": "active_allocated",
                "frames": frames,
            }
            end = max(end, address + size)
            note("alloc", address, event.size_bytes, frames)
        else:
            block = live.pop(event.block)
            for action in ("free_requested", "free_completed"):
                note(action, block["address"], block["requested_size"], frames)
    total = max(1, -(-(end - _START) // SEGMENT_BYTES)) * SEGMENT_BYTES
    note("segment_alloc", _START, total, [])
    trace.insert(0, trace.pop())
    return pickle.dumps({"segments": [_segment(live, total)], "device_traces": [trace]})


def _gaps(blocks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int | None]]:
    """Yield free address ranges (start, end) in order; the last one has end None."""
    address = _START
    for block in sorted(blocks, key=lambda block: block["address"]):
        if block["address"] > address:
            yield address, block["address"]
        address = block["address"] + block["size"]
    yield address, None


def _segment(live: Mapping[int, Mapping[str, Any]], total: int) -> dict[str, Any]:
    """The segment's entry, with its blocks and the gaps between them."""
    gaps = [
        {
            "address": start,
            "size": (_START + total if end is None else end) - start,
            "requested_size": 0,
            "state": "inactive",
            "frames": [],
        }
        for start, end in _gaps(live.values())
    ]
    blocks = [*live.values(), *(gap for gap in gaps if gap["size"])]
    used = sum(block["size"] for block in live.values())
    return {
        "device": 0,
        "address": _START,
        "total_size": total,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(block["requested_size"] for block in live.values()),
        "is_expandable": False,
        "frames": [],
        "blocks": sorted(blocks, key=lambda block: block["address"]),
    }


# --- the blocks of a prediction -----------------------------------------------------------------

# File and function in which a consumer's blocks would be allocated, in every phase or by phase.
_ALWAYS = {
    "weights": ("torch/nn/modules/module.py", "_apply"),
    "optimizer": ("torch/optim/adamw.py", "_init_group"),
    "framework overhead": ("cublas", "getWorkspace"),
    "inputs and labels": ("predicted", "batch"),
}
_IN_PHASE = {
    "forward": ("torch/nn/modules/module.py", "forward"),
    "backward": ("torch/_tensor.py", "backward"),
    "update": ("torch/optim/adamw.py", "step"),
}


def timeline_events(run: StepTimeline) -> tuple[BlockEvent, ...]:
    """The blocks that a predicted step would allocate and free, for `snapshot_pickle`.

    A consumer's growth from one moment to the next is one block; the newest are freed first.
    Each block's stack names its consumer, the moment, and the phase.
    """
    events: list[BlockEvent] = []
    held: dict[str, list[BlockEvent]] = {name: [] for name in run.sizes}
    numbers = count()

    def size_of(name: str) -> int:
        return sum(block.size_bytes for block in held[name])

    def grow(name: str, size: int, frames: tuple[Frame, ...]) -> None:
        if more := size - size_of(name):
            held[name].append(BlockEvent("alloc", next(numbers), more, frames))
            events.append(held[name][-1])

    before = run.steps[0]
    for step in run.steps:
        sizes = step.bill.consumers
        for name, size in sizes.items():  # frees first, as the previous moment ends
            if size_of(name) > size:
                frames = _stack(name, before)
                while size_of(name) > size:
                    events.append(held[name].pop()._replace(action="free", frames=frames))
                grow(name, size, frames)
        for name, size in sizes.items():
            grow(name, size, _stack(name, step))
        before = step
    return tuple(events)


def _stack(name: str, step: StepMoment) -> tuple[Frame, ...]:
    filename, function = _ALWAYS.get(name, _IN_PHASE[step.phase])
    return Frame("predicted", 0, f"{name}: {step.what}"), Frame(filename, 0, function)


# --- reading an untrusted file ------------------------------------------------------------------


class _Plain(pickle.Unpickler):
    """Unpickles numbers, strings, lists, tuples and dicts only."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(
            f"the file asks for {told(f'{module}.{name}')}, which would run code: a memory "
            "snapshot holds plain lists and numbers, so do not open it with anything else either"
        )


def parse_snapshot(data: bytes) -> dict[str, Any]:
    """Parse the content of a snapshot file: a dict with "segments" and "device_traces".

    Raises ValueError for a file that names any class or function, as a pickle that runs code must;
    for one that is no pickle; and for a pickle of anything else.
    """
    write_it = "write it with torch.cuda.memory._dump_snapshot(path)"
    try:
        content: dict[str, Any] = _Plain(io.BytesIO(data)).load()
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"the file is no pickle ({type(error).__name__}): {write_it}") from None
    try:
        blocks = [block for segment in content["segments"] for block in segment["blocks"]]
        entries = [entry for trace in content["device_traces"] for entry in trace]
        valid = all(isinstance(block["size"], int) for block in blocks)
        valid &= all(isinstance(entry["action"], str) for entry in entries)
    except (KeyError, TypeError):
        valid = False
    if not valid:
        raise ValueError(f"the file is a pickle, but no memory snapshot: {write_it}")
    return content


# --- sorting blocks into categories -------------------------------------------------------------

LEAK, UNKNOWN = "leak", "not known"
CATEGORIES = (
    "weights",
    "gradients",
    "optimizer",
    "inputs and labels",
    "intermediate results",
    "temporary buffers",
    "framework overhead",
    LEAK,
    UNKNOWN,
)
LEAK_ROUNDS = 3  # two rounds could be a prefetched batch
_FORWARD, _BACKWARD, _UPDATE, _SETUP, _OUTSIDE = "forward", "backward", "update", "setup", ""
_OF_PHASE = {
    _SETUP: "weights",
    _UPDATE: "optimizer",
    _BACKWARD: "gradients",
    _FORWARD: "intermediate results",
}
_OPTIMIZER = re.compile(r"(^|[/\\])optim(izers?)?([/\\.]|$)|adam", re.IGNORECASE)
_INPUTS = re.compile(r"batch|loader|collate", re.IGNORECASE)
_LIBRARY = re.compile(
    r"(site|dist)-packages|[/\\](course_lib|lib[/\\]python3[.\d]*)[/\\]|\.(cpp|c|h|cu)$|^[<?]|^$"
)


@dataclass(frozen=True)
class Leak:
    """Blocks that the same stack allocates in several rounds and that are never freed.

    A round begins with each forward pass.
    """

    frames: tuple[Frame, ...]
    blocks: int
    rounds: int
    size_bytes: int

    @property
    def where(self) -> str:
        """The innermost line of the stack that is outside libraries."""
        frame = _user_frame(self.frames)
        if frame is None:
            return self.frames[0].name if self.frames else "a stack that was not recorded"
        # ipykernel names the file of a cell by a checksum of its text.
        name = "a cell" if "ipykernel" in frame.filename else re.split(r"[/\\]", frame.filename)[-1]
        return f"{name}, line {frame.line}, in {frame.name}"

    def explain(self) -> str:
        """The leak in one line."""
        return (
            f"leak: {self.blocks} blocks, {format_bytes(self.size_bytes)}, born in {self.rounds} "
            f"rounds and never freed, at {self.where}"
        )


@dataclass(frozen=True)
class Snapshot:
    """Phase, moment and bytes by category, at the start of a trace and after each change; leaks."""

    phases: tuple[str, ...]
    moments: tuple[str, ...]
    sizes: dict[str, tuple[int, ...]]
    leaks: tuple[Leak, ...]

    @property
    def totals(self) -> tuple[int, ...]:
        """Bytes of all categories together, at each moment."""
        return tuple(map(sum, zip(*self.sizes.values(), strict=True)))


def read_snapshot(data: bytes) -> Snapshot:
    """Sort the blocks of the device with the most events; `data` is the file's content.

    The category follows from the phase of the allocating stack and the time of the free. Allocated
    while a model is built or moved: weights. In the optimizer: its states, or temporary if freed in
    the same update. In forward: intermediate results if freed in backward. In backward: gradients
    if they outlive it; otherwise temporary. Outside all of these: inputs and labels, if some block
    of the same stack is freed. "leak": blocks of one stack, allocated in at least 3 rounds, never
    freed. "not known": the rest, such as blocks without a stack from before the recording.
    Raises ValueError as `parse_snapshot` does, and for a file without events.
    """
    content = parse_snapshot(data)
    traces = content["device_traces"]
    device = max(range(len(traces)), key=lambda number: len(traces[number]), default=0)
    if not any(traces):
        raise ValueError(
            "the file has no events: call torch.cuda.memory._record_memory_history() first"
        )
    life = _Life()
    for entry in traces[device]:
        life.see(entry)
    life.end([one for one in content["segments"] if one.get("device", device) == device])
    return life.sorted()


@dataclass(eq=False)
class _Block:
    """One block from its allocation to its free."""

    size: int
    frames: tuple[Frame, ...]
    phase: str  # of the allocation
    run: int = -1  # stretch of one phase in which it was allocated; -1 before the trace
    round: int = 0
    died: int | None = None  # the run in which it was freed
    kind: str = UNKNOWN


class _Life:
    """Replays the trace: phases, allocations and frees."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.live: dict[int, _Block] = {}
        self.changes: list[tuple[str, str, _Block, int]] = []
        self.phase, self.run, self.round = _SETUP, 0, 0

    def see(self, entry: Mapping[str, Any]) -> None:
        """Replay one entry of the trace."""
        action, frames = entry["action"], _frames(entry)
        address, size = _number(entry, "addr"), _number(entry, "size")
        if action == "alloc":
            phase = self.enter(frames)
            block = self.live[address] = _Block(size, frames, phase, self.run, self.round)
            self.blocks.append(block)
            frame = _user_frame(frames) or (frames[0] if frames else None)
            self.changes.append((self.phase, frame.name if frame else "", block, size))
        elif action == "free_requested" or (action == "free_completed" and address in self.live):
            if address not in self.live:  # allocated before the trace
                self.live[address] = _Block(size, (), _OUTSIDE)
                self.blocks.append(self.live[address])
            block = self.live.pop(address)
            if frames != block.frames:  # some versions record the allocating stack again
                self.enter(frames)
            block.died = self.run
            self.changes.append((self.phase, "free", block, -size))

    def enter(self, frames: tuple[Frame, ...]) -> str:
        """Return the phase of a stack, and make it the current phase."""
        phase = _phase(frames)
        if not frames and self.phase in (_FORWARD, _BACKWARD):
            phase = _BACKWARD  # autograd's own thread on a GPU has no Python stack
        if phase == _OUTSIDE:
            return _FORWARD if self.phase == _FORWARD else _OUTSIDE
        if phase != self.phase:
            self.run += 1
            self.round += phase == _FORWARD
            self.phase = phase
        return phase

    def end(self, segments: Sequence[Mapping[str, Any]]) -> None:
        """Add blocks that are still live at the end and were allocated before the trace."""
        for segment in segments:
            address = _number(segment, "address")
            for block in segment["blocks"]:
                address = block.get("address", address)
                if str(block.get("state")).startswith("active") and address not in self.live:
                    frames = _frames(block)
                    size = block.get("requested_size", block["size"])
                    self.blocks.append(_Block(size, frames, _phase(frames)))
                address += block["size"]

    def sorted(self) -> Snapshot:
        """Assign each block its category, and sum bytes by category at each moment."""
        mortal = {block.frames for block in self.blocks if block.died is not None}
        staying: dict[tuple[Frame, ...], list[_Block]] = {}
        for block in self.blocks:
            block.kind = _kind(block, self.round, block.frames in mortal)
            if block.died is None and block.run >= 0:
                staying.setdefault(block.frames, []).append(block)
        leaks = []
        for frames, blocks in staying.items():
            rounds = len({block.round for block in blocks})
            if rounds >= LEAK_ROUNDS:
                size = sum(block.size for block in blocks)
                leaks.append(Leak(frames, len(blocks), rounds, size))
                for block in blocks:
                    block.kind = LEAK
        held = dict.fromkeys(CATEGORIES, 0)
        for block in self.blocks:
            held[block.kind] += block.size * (block.run < 0)
        columns = {name: [size] for name, size in held.items()}
        for _, _, block, change in self.changes:
            held[block.kind] += change
            for name, size in held.items():
                columns[name].append(size)
        return Snapshot(
            (self.changes[0][0] if self.changes else _SETUP, *(one[0] for one in self.changes)),
            ("start", *(one[1] for one in self.changes)),
            {name: tuple(sizes) for name, sizes in columns.items()},
            tuple(sorted(leaks, key=lambda leak: -leak.size_bytes)),
        )


def _kind(block: _Block, last_round: int, mortal: bool) -> str:
    """The category of a block; `mortal`: some block of its stack was freed."""
    if any("Workspace" in frame.name for frame in block.frames):
        return "framework overhead"
    if any(_INPUTS.search(frame.name) for frame in block.frames):
        return "inputs and labels"
    if block.phase == _OUTSIDE:
        return "inputs and labels" if mortal and block.frames else UNKNOWN
    if block.run >= 0 and block.died == block.run:
        return "temporary buffers"
    if block.phase == _FORWARD and block.died is None and block.round < last_round:
        return UNKNOWN
    return _OF_PHASE[block.phase]


def _number(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name, 0)
    return value if isinstance(value, int) else 0


def _frames(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    return tuple(
        Frame(str(one.get("filename", "")), _number(one, "line"), str(one.get("name", "")))
        for one in entry.get("frames") or ()
        if isinstance(one, dict)
    )


@lru_cache(maxsize=4096)
def _user_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame outside libraries, or None."""
    return next((frame for frame in frames if not _LIBRARY.search(frame.filename)), None)


@lru_cache(maxsize=4096)  # the same lines run in every step
def _phase(frames: tuple[Frame, ...]) -> str:
    """The phase that a stack's functions imply, or _OUTSIDE."""
    names, files = {frame.name for frame in frames}, {frame.filename for frame in frames}
    if names & {"backward", "_engine_run_backward"} or any("autograd::Eng" in n for n in names):
        return _BACKWARD
    if "zero_grad" in names or any(map(_OPTIMIZER.search, names | files)):
        return _UPDATE
    called = names & {"forward", "_call_impl", "_wrapped_call_impl"}
    if called or any(name.endswith("nn/functional.py") for name in files):
        return _FORWARD
    if names & {"__init__", "_apply", "load_state_dict", "reset_parameters"}:
        return _SETUP
    return _OUTSIDE


# --- a trace for other viewers ------------------------------------------------------------------


def chrome_trace(phases: Sequence[str], sizes: Mapping[str, Sequence[int]]) -> str:
    """A trace for chrome://tracing and ui.perfetto.dev, as JSON; one microsecond per moment.

    It has a bar for each phase and a counter of bytes by category. `phases` has the phase of each
    moment, `sizes` its bytes by category, as in this module's timelines. Moments are in order, not
    to scale in time. Events have the keys of torch.profiler's.
    Source: Google's Trace Event Format: "M" names a process, "X" lasts, "C" counts; times in µs.
    """
    process = {"pid": 0, "tid": 0}
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "ts": 0, **process, "args": {"name": "memory of a GPU"}}
    ]
    start = 0
    for phase, group in groupby(phases):
        moments = len(list(group))
        bar = {"name": phase, "ph": "X", "cat": "phase", "ts": start, "dur": moments}
        events.append(bar | process)
        start += moments
    for moment in range(len(phases)):
        args = {name: column[moment] for name, column in sizes.items()}
        events.append({"name": "bytes", "ph": "C", "ts": moment, **process, "args": args})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False)
