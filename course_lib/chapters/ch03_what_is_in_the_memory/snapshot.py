"""What the blocks of a memory snapshot are for: sorted by where they were born and when they died.

A stack says in which phase a block was born; what it is for shows when it dies. Born forward and
gone forward: temporary. Born forward and gone backward: an intermediate result.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from course_lib.chapters.ch03_what_is_in_the_memory.snapshot_file import Frame, parse_snapshot
from course_lib.theory.inputs.units import format_bytes
from course_lib.validation import DERIVED, whole

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
LEAK_ROUNDS = 3  # two may be a batch that is loaded ahead
_FORWARD, _BACKWARD, _UPDATE, _SETUP, _OUTSIDE = "forward", "backward", "update", "setup", ""
_OPTIMIZER = re.compile(r"(^|[/\\])optim(izers?)?([/\\.]|$)|adam", re.IGNORECASE)
_INPUTS = re.compile(r"batch|loader|collate", re.IGNORECASE)
_LIBRARY = re.compile(
    r"(site|dist)-packages|[/\\](course_lib|lib[/\\]python3[.\d]*)[/\\]|\.(cpp|c|h|cu)$|^[<?]|^$"
)


@dataclass(frozen=True)
class Leak:
    """Blocks with one stack that are born in round after round and never die.

    A round begins with each forward pass.
    """

    frames: tuple[Frame, ...]
    blocks: int
    rounds: int
    size_bytes: int

    @property
    def where(self) -> str:
        """The innermost line of the stack that is no library's."""
        own = _own(self.frames)
        if own is None:
            return self.frames[0].name if self.frames else "a stack that was not recorded"
        # ipykernel names the file of a cell by a checksum of its text.
        name = "a cell" if "ipykernel" in own.filename else re.split(r"[/\\]", own.filename)[-1]
        return f"{name}, line {own.line}, in {own.name}"

    def explain(self) -> str:
        """The leak in one line."""
        return (
            f"leak: {self.blocks} blocks, {format_bytes(self.size_bytes)}, born in {self.rounds} "
            f"rounds and never freed, at {self.where}"
        )


@dataclass(frozen=True)
class Snapshot:
    """Bytes by category at the start of a trace and after each change, and what was found.

    `reserved_bytes` is what the allocator holds at the end, blocks and gaps.
    """

    phases: tuple[str, ...]
    moments: tuple[str, ...]
    sizes: dict[str, tuple[int, ...]]
    leaks: tuple[Leak, ...]
    reserved_bytes: int

    @property
    def totals(self) -> tuple[int, ...]:
        """All categories together."""
        return tuple(map(sum, zip(*self.sizes.values(), strict=True)))

    @property
    def at_peak(self) -> dict[str, int]:
        """Bytes by category at the first moment at which most is there."""
        totals = self.totals
        place = totals.index(max(totals))
        return {name: sizes[place] for name, sizes in self.sizes.items()}

    def explain(self, unit: str = "GB") -> str:
        """One line for each category at the peak, the total, what is reserved; the leaks."""
        peak = {name: size for name, size in self.at_peak.items() if size}
        lines = {**peak, "peak": sum(peak.values()), "reserved at the end": self.reserved_bytes}
        text = [f"{name:<22}{format_bytes(size, unit):>12}" for name, size in lines.items()]
        return "\n".join([*text, *(leak.explain() for leak in self.leaks)])


def read_snapshot(data: bytes, device: int = DERIVED) -> Snapshot:
    """The blocks of one device, sorted: `data` is the file's content.

    The seven consumers by the phase of the stack and the time of death. Born while a model is built
    or moved: weights. In the optimizer: its states, or temporary if gone in the same update. In
    forward: intermediate results if they die in backward; in backward: gradients if they outlive
    it; otherwise temporary. Outside all of these: inputs and labels, if they or blocks of
    the same stack die. "leak": one stack whose blocks are born in at least 3 rounds and never die.
    "not known": the rest, such as what was there before the recording began and says nothing.
    `device`: by default the one with most events. Raises ValueError as `parse_snapshot` does, and
    for a device without events.
    """
    content = parse_snapshot(data)
    traces = content["device_traces"]
    if device is DERIVED:
        device = max(range(len(traces)), key=lambda it: len(traces[it]), default=0)
    whole("device", device, least=0)
    if device >= len(traces) or not traces[device]:
        raise ValueError(
            f"device {device} has no events: call torch.cuda.memory._record_memory_history() first"
        )
    segments = [it for it in content["segments"] if it.get("device", device) == device]
    life = _Life()
    for entry in traces[device]:
        life.see(entry)
    life.end(segments)
    return _sorted(life, sum(_number(it, "total_size") for it in segments))


class _Block:
    """One block from birth to death."""

    def __init__(
        self, size: int, frames: tuple[Frame, ...], phase: str, run: int, round_: int
    ) -> None:
        self.size, self.frames = size, frames
        self.phase = phase  # in which it was born
        self.run = run  # of one phase, in which it was born; -1 before the trace
        self.round = round_
        self.died: int | None = None  # the run
        self.kind = UNKNOWN


class _Life:
    """Follows the trace: phases, births and deaths."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.live: dict[int, _Block] = {}
        self.changes: list[tuple[str, str, _Block, int]] = []
        self.phase, self.run, self.round = _SETUP, 0, 0

    def see(self, entry: Mapping[str, Any]) -> None:
        """One entry of the trace."""
        action, frames = entry["action"], _frames(entry)
        address, size = _number(entry, "addr"), _number(entry, "size")
        if action == "alloc":
            phase = self.enter(frames)
            block = _Block(size, frames, phase, self.run, self.round)
            self.blocks.append(block)
            self.live[address] = block
            own = _own(frames) or (frames[0] if frames else None)
            self.changes.append((self.phase, own.name if own else "", block, size))
        elif action in ("free_requested", "free_completed"):
            if action == "free_completed" and address not in self.live:
                return  # the request was seen
            missing = _Block(size, (), _OUTSIDE, -1, 0)
            block = self.live.pop(address, missing)
            if block is missing:
                self.blocks.append(missing)
            if frames != block.frames:  # some versions give the stack of the birth
                self.enter(frames)
            block.died = self.run
            self.changes.append((self.phase, "free", block, -size))

    def enter(self, frames: tuple[Frame, ...]) -> str:
        """The phase of a stack; the phase that is on changes with it."""
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
        """Add what lives at the end and was born before the trace."""
        for segment in segments:
            address = _number(segment, "address")
            for block in segment["blocks"]:
                address = block.get("address", address)
                if str(block.get("state")).startswith("active") and address not in self.live:
                    frames = _frames(block)
                    size = block.get("requested_size", block["size"])
                    self.blocks.append(_Block(size, frames, _phase(frames), -1, 0))
                address += block["size"]


def _number(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name, 0)
    return value if isinstance(value, int) else 0


def _frames(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    found = entry.get("frames") or ()
    return tuple(
        Frame(str(it.get("filename", "")), _number(it, "line"), str(it.get("name", "")))
        for it in found
        if isinstance(it, dict)
    )


@lru_cache(maxsize=4096)
def _own(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame that is no library's."""
    return next((it for it in frames if not _LIBRARY.search(it.filename)), None)


@lru_cache(maxsize=4096)  # the same lines run in every step
def _phase(frames: tuple[Frame, ...]) -> str:
    """ "forward", "backward", "update" or "setup" by the functions of a stack; "" if none says."""
    names = {frame.name for frame in frames}
    if names & {"backward", "_engine_run_backward"} or any("autograd::Eng" in it for it in names):
        return _BACKWARD
    if "zero_grad" in names or any(
        _OPTIMIZER.search(it.filename) or _OPTIMIZER.search(it.name) for it in frames
    ):
        return _UPDATE
    called = names & {"forward", "_call_impl", "_wrapped_call_impl"}
    if called or any(it.filename.endswith("nn/functional.py") for it in frames):
        return _FORWARD
    if names & {"__init__", "_apply", "load_state_dict", "reset_parameters"}:
        return _SETUP
    return _OUTSIDE


def _sorted(life: _Life, reserved: int) -> Snapshot:
    """Give each block its category, and add them up moment by moment."""
    mortal = {it.frames for it in life.blocks if it.died is not None}
    for block in life.blocks:
        block.kind = _kind(block, life.round, block.frames in mortal)
    leaks = _leaks(life.blocks)
    for leak in leaks:
        for block in life.blocks:
            if block.died is None and block.frames == leak.frames and block.run >= 0:
                block.kind = LEAK
    held = dict.fromkeys(CATEGORIES, 0)
    for block in life.blocks:
        held[block.kind] += block.size * (block.run < 0)
    columns: dict[str, list[int]] = {name: [size] for name, size in held.items()}
    for _, _, block, change in life.changes:
        held[block.kind] += change
        for name, size in held.items():
            columns[name].append(size)
    return Snapshot(
        (life.changes[0][0] if life.changes else _SETUP, *(it[0] for it in life.changes)),
        ("start", *(it[1] for it in life.changes)),
        {name: tuple(sizes) for name, sizes in columns.items()},
        leaks,
        reserved,
    )


def _kind(block: _Block, last_round: int, mortal: bool) -> str:
    """What a block is for."""
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
    return {
        _SETUP: "weights",
        _UPDATE: "optimizer",
        _BACKWARD: "gradients",
        _FORWARD: "intermediate results",
    }[block.phase]


def _leaks(blocks: Iterable[_Block]) -> tuple[Leak, ...]:
    """Stacks whose blocks stay from round to round, the largest first."""
    staying: dict[tuple[Frame, ...], list[_Block]] = {}
    for block in blocks:
        if block.died is None and block.run >= 0:
            staying.setdefault(block.frames, []).append(block)
    found = []
    for frames, its in staying.items():
        rounds = len({block.round for block in its})
        if rounds >= LEAK_ROUNDS:
            found.append(Leak(frames, len(its), rounds, sum(block.size for block in its)))
    return tuple(sorted(found, key=lambda leak: -leak.size_bytes))
