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

from course_lib.trace import Event

_NODE = "autograd::engine::evaluate_function: "  # one step of backward
_WIRES = ("gloo:", "nccl")


@dataclass(frozen=True)
class Timeline:
    """When one rank computed and when it communicated, in seconds.

    Time begins with the first event. Those of a row are in order and do not
    touch one another.
    """

    computation: tuple[Event, ...]
    communication: tuple[Event, ...]

    @property
    def rows(self) -> dict[str, tuple[Event, ...]]:
        """Both, as figures and traces take them."""
        return {
            "computation": self.computation,
            "communication": self.communication,
        }

    @property
    def communication_ms(self) -> float:
        """Time during which at least one collective was under way."""
        return 1000 * sum(e.until - e.at for e in self.communication)

    @property
    def overlapped_ms(self) -> float:
        """The part of it during which backward computed as well."""
        return 1000 * sum(
            max(0.0, min(a.until, b.until) - max(a.at, b.at))
            for a in self.communication
            for b in self.computation
        )


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
    return Timeline(
        _row("computation", work, start), _row("communication", wire, start)
    )


def _row(
    what: str, found: Iterable[dict[str, Any]], start: float
) -> tuple[Event, ...]:
    """What was found as events, with those that touch merged."""
    row: list[Event] = []
    for e in sorted(found, key=lambda one: one["ts"]):
        first = (e["ts"] - start) / 1e6
        end = first + e["dur"] / 1e6
        if row and first <= row[-1].until:
            before = row.pop()
            first, end = before.at, max(end, before.until)
        row.append(Event(first, 0, what, end=end))
    return tuple(row)
