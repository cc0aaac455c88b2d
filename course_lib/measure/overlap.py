"""How much communication hides behind computation, from a profiler's trace.

torch.profiler writes the Trace Event format of Chrome: each event has a name,
a category, a start `ts` and a duration `dur` in microseconds.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Interval = tuple[float, float]  # start, end
_NODE = "autograd::engine::evaluate_function: "  # one step of backward
_WIRES = ("gloo:", "nccl")


@dataclass(frozen=True)
class Timeline:
    """When one rank computed and when it communicated, in ms from the first.

    The intervals of a lane are in order and do not touch one another.
    """

    computation: list[Interval]
    communication: list[Interval]

    @property
    def communication_ms(self) -> float:
        """Time during which at least one collective was under way."""
        return sum(end - start for start, end in self.communication)

    @property
    def overlapped_ms(self) -> float:
        """The part of it during which backward computed as well."""
        return sum(
            max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
            for a in self.communication
            for b in self.computation
        )

    @property
    def end_ms(self) -> float:
        """When the last of all these intervals ended."""
        return max(end for _, end in self.computation + self.communication)


def record(backward: Callable[[], object]) -> dict[str, Any]:
    """Chrome's trace of `backward()`, as `json.load` gives it."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as trace:
        backward()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        trace.export_chrome_trace(str(path))
        chrome: dict[str, Any] = json.loads(path.read_text())
        return chrome


def timeline(trace: dict[str, Any]) -> Timeline:
    """Computation and communication in a trace of one rank's backward pass.

    On a GPU these are its kernels; on a CPU the nodes of the autograd graph
    and gloo's threads. Nodes that accumulate gradients are left out, because
    DDP's hooks run inside them. Raises ValueError for a trace without
    computation.
    """
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    kernels = [e for e in events if e["cat"] == "kernel"]
    wire = [
        e
        for e in kernels or events
        if e["name"].startswith(_WIRES) and e["cat"] != "cpu_op"
    ]
    nodes = kernels or [
        e
        for e in events
        if e["name"].startswith(_NODE)
        and not e["name"].endswith("AccumulateGrad")
    ]
    work = [e for e in nodes if e not in wire]
    if not work:
        raise ValueError(
            "trace has no computation: record a whole backward pass"
        )
    start = min(e["ts"] for e in work + wire)
    return Timeline(_lane(work, start), _lane(wire, start))


def _lane(events: Iterable[dict[str, Any]], start: float) -> list[Interval]:
    """The events' intervals in ms, with those that touch merged."""
    lane: list[Interval] = []
    for e in sorted(events, key=lambda event: event["ts"]):
        first = (e["ts"] - start) / 1000
        end = first + e["dur"] / 1000
        if lane and first <= lane[-1][1]:
            first, last_end = lane.pop()
            end = max(end, last_end)
        lane.append((first, end))
    return lane
