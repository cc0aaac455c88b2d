"""Memory snapshots as files: read without trust, and written as torch writes them.

The format is that of torch.cuda.memory._snapshot(): segments of memory with their blocks, and for
each device a trace of what the allocator did. Source: torch/cuda/memory.py, `_snapshot`.
"""

import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from course_lib.checked import checked
from course_lib.theory.inputs.units import MIB
from course_lib.theory.memory.step_timeline import StepTimeline
from course_lib.validation import choice, listed, told, whole

ROUND_BYTES = 512  # the allocator's smallest block
SEGMENT_BYTES = 2 * MIB
_START = 0x7F0000000000
_ALWAYS = {  # what a block is for, and the function in which it would be allocated
    "weights": ("torch/nn/modules/module.py", "_apply"),
    "optimizer": ("torch/optim/adamw.py", "_init_group"),
    "framework overhead": ("cublas", "getWorkspace"),
    "inputs and labels": ("predicted", "batch"),
}
_PHASES = {
    "forward": ("torch/nn/modules/module.py", "forward"),
    "backward": ("torch/_tensor.py", "backward"),
    "update": ("torch/optim/adamw.py", "step"),
}


class Frame(NamedTuple):
    """One call of a stack."""

    filename: str
    line: int
    name: str


class BlockEvent(NamedTuple):
    """Block number `block` is born ("alloc") or dies ("free"); `frames` begin with the innermost.

    A free needs no size.
    """

    action: str
    block: int
    size_bytes: int
    frames: tuple[Frame, ...] = ()


class _Plain(pickle.Unpickler):
    """Builds numbers, strings, lists, tuples and dicts, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(
            f"the file asks for {told(f'{module}.{name}')}, which would run code: a memory "
            "snapshot holds plain lists and numbers, so do not open it with anything else either"
        )


def parse_snapshot(data: bytes) -> dict[str, Any]:
    """The content of a snapshot's file: a dict with "segments" and "device_traces".

    Raises ValueError for a file that names any class or function, as a pickle that runs code must;
    for one that is no pickle; and for one that holds something else.
    """
    if not isinstance(data, bytes):
        raise TypeError(f"data must be bytes, not {told(data)}: read the file with read_bytes()")
    try:
        found = _Plain(io.BytesIO(data)).load()
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"the file is no pickle ({type(error).__name__}): write it with "
            "torch.cuda.memory._dump_snapshot(path)"
        ) from None
    if not _is_snapshot(found):
        raise ValueError(
            "the file is a pickle, but no memory snapshot: write it with "
            "torch.cuda.memory._dump_snapshot(path)"
        )
    return dict(found)


def _is_snapshot(found: Any) -> bool:
    """Whether it has segments with blocks, and traces with entries."""
    if not isinstance(found, dict):
        return False
    segments, traces = found.get("segments"), found.get("device_traces")
    if not isinstance(segments, list) or not isinstance(traces, list):
        return False
    entries = [entry for trace in traces if isinstance(trace, list) for entry in trace]
    blocks = [
        block
        for segment in segments
        if isinstance(segment, dict) and isinstance(segment.get("blocks"), list)
        for block in segment["blocks"]
    ]
    return (
        all(isinstance(trace, list) for trace in traces)
        and all(isinstance(it, dict) and "blocks" in it for it in segments)
        and all(isinstance(it, dict) and isinstance(it.get("action"), str) for it in entries)
        and all(isinstance(it, dict) and isinstance(it.get("size"), int) for it in blocks)
    )


@checked
def snapshot_pickle(events: Sequence[tuple[Any, ...]]) -> bytes:
    """A snapshot's file with these events, each a BlockEvent or the same four things in a tuple.

    The blocks lie in one segment, each in the first gap that is large enough, rounded up to 512 B.
    torch.cuda._memory_viz and pytorch.org/memory_viz read it. Raises ValueError for a block that is
    born twice, or dies before it is born.
    """
    listed("events", len(events), "record fewer steps")
    trace: list[dict[str, Any]] = []
    live: dict[int, dict[str, Any]] = {}
    end = 0
    for event in (_event(it) for it in events):
        frames = [frame._asdict() for frame in event.frames]
        if event.action == "alloc":
            if event.block in live:
                raise ValueError(f"block {event.block} is born twice: free it in between")
            size = -(-max(event.size_bytes, 1) // ROUND_BYTES) * ROUND_BYTES
            place = _first_gap(live.values(), size)
            live[event.block] = {
                "address": _START + place,
                "size": size,
                "requested_size": event.size_bytes,
                "state": "active_allocated",
                "frames": frames,
            }
            end = max(end, place + size)
            trace.append(_entry("alloc", _START + place, event.size_bytes, frames, len(trace)))
        else:
            if event.block not in live:
                raise ValueError(f"block {event.block} dies before it is born: allocate it first")
            block = live.pop(event.block)
            for action in ("free_requested", "free_completed"):
                size = block["requested_size"]
                trace.append(_entry(action, block["address"], size, frames, len(trace)))
    total = max(1, -(-end // SEGMENT_BYTES)) * SEGMENT_BYTES
    first = _entry("segment_alloc", _START, total, [], 0)
    content = {"segments": [_segment(live, total)], "device_traces": [[first, *trace]]}
    return pickle.dumps(content)


def _event(given: tuple[Any, ...]) -> BlockEvent:
    try:
        event = BlockEvent(*given)
        frames = tuple(Frame(str(name), int(line), str(what)) for name, line, what in event.frames)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"event {told(given)} is not (action, block, bytes, frames): give four things, each "
            "frame as (file, line, function)"
        ) from None
    choice("action", event.action, ("alloc", "free"))
    whole("block", event.block, least=0)
    whole("size_bytes", event.size_bytes, least=0)
    return event._replace(frames=frames)


def _entry(action: str, address: int, size: int, frames: Any, at: int) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": at,
        "frames": frames,
    }


def _first_gap(blocks: Any, size: int) -> int:
    """Where `size` bytes fit between the blocks, or behind the last."""
    place = 0
    for block in sorted(blocks, key=lambda it: it["address"]):
        if block["address"] - _START - place >= size:
            break
        place = block["address"] - _START + block["size"]
    return place


def _segment(live: dict[int, dict[str, Any]], total: int) -> dict[str, Any]:
    """The segment with its blocks and the gaps between them."""
    blocks: list[dict[str, Any]] = []
    place = _START
    behind = {"address": _START + total, "size": 0}
    for block in [*sorted(live.values(), key=lambda it: it["address"]), behind]:
        if block["address"] > place:
            gap = {"address": place, "size": block["address"] - place, "state": "inactive"}
            blocks.append({**gap, "requested_size": 0, "frames": []})
        if block["size"]:
            blocks.append(block)
        place = block["address"] + block["size"]
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
        "blocks": blocks,
    }


@checked
def timeline_events(run: StepTimeline) -> tuple[BlockEvent, ...]:
    """The blocks that a predicted step would allocate and free, for `snapshot_pickle`.

    Whatever a consumer grows by from one moment to the next is one block; the youngest die first.
    Each has a stack that says what it is for, at which moment, and in which phase.
    """
    return tuple(_changes(run))


def _changes(run: StepTimeline) -> Iterator[BlockEvent]:
    held: dict[str, list[tuple[int, int]]] = {}  # consumer: (block, bytes)
    number = 0
    before = run.steps[0]
    for step in run.steps:
        bill = step.bill.consumers
        for name, size in bill.items():  # first what goes, as the moment before ends
            stack = held.setdefault(name, [])
            frames = _frames(name, before.what, before.phase)
            kept = None
            while sum(it for _, it in stack) > size:
                block, its = stack.pop()
                yield BlockEvent("free", block, its, frames)
                kept = size - sum(it for _, it in stack)
            if kept:
                stack.append((number, kept))
                yield BlockEvent("alloc", number, kept, frames)
                number += 1
        for name, size in bill.items():
            more = size - sum(it for _, it in held[name])
            if more:
                frames = _frames(name, step.what, step.phase)
                held[name].append((number, more))
                yield BlockEvent("alloc", number, more, frames)
                number += 1
        before = step


def _frames(name: str, what: str, phase: str) -> tuple[Frame, ...]:
    filename, function = _ALWAYS.get(name, _PHASES[phase])
    return Frame("predicted", 0, f"{name}: {what}"), Frame(filename, 0, function)
