"""Measures FLOPs, seconds, rates, and the timeline of a backward pass."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import (
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from course_lib.measure.wire import Listener
from course_lib.trace import Event


def matmul_flops(step: Callable[[], object]) -> int:
    """FLOPs of all matrix products during `step()`, 2 for each multiply-add.

    Uses the formulas of torch's FlopCounterMode, which cannot see inside a
    custom autograd Function. Attention counts the products of all pairs of
    positions, even if a causal mask lets a kernel skip half of them; the
    backward pass of fused attention includes the scores that it recomputes.
    """
    total = 0

    def add(operator: Any, args: Any, options: Any, result: Any) -> None:
        nonlocal total
        formula = _FORMULAS.get(operator.overloadpacket)
        if formula:
            total += formula(*args, **options, out_val=result)

    with Listener(add):
        step()
    return total


def _flash_forward(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    flops: int = sdpa_flop_count(q.shape, k.shape, v.shape)
    return flops


def _flash_backward(*args: Any, **_: Any) -> int:
    gradient, q, k, v = (tensor.shape for tensor in args[:4])
    flops: int = sdpa_backward_flop_count(gradient, q, k, v)
    return flops


# torch 2.13 itself has no formula for flash attention on a CPU.
_ATEN = torch.ops.aten
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _flash_forward,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (
        _flash_backward
    ),
}


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median time of `work()` in seconds, after one warm-up call."""
    work()
    times = []
    for _ in range(repeats):
        _wait()
        start = time.perf_counter()
        work()
        _wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def matmul_flop_per_s(
    rows: int = 512,
    inner: int = 512,
    columns: int = 512,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> float:
    """FLOP/s of one matrix product: 2 · rows · inner · columns / time."""
    a = torch.randn(rows, inner, dtype=dtype, device=device)
    b = torch.randn(inner, columns, dtype=dtype, device=device)
    out = torch.empty(rows, columns, dtype=dtype, device=device)
    return (
        2 * rows * inner * columns / seconds(lambda: torch.mm(a, b, out=out))
    )


def memory_bytes_per_s(numbers: int = 2**24, device: str = "cpu") -> float:
    """Bytes read and written per second by c = a + b on fp32 vectors."""
    a, b, c = (torch.ones(numbers, device=device) for _ in range(3))
    return 3 * c.nbytes / seconds(lambda: torch.add(a, b, out=c))


def _wait(device: torch.device | None = None) -> None:
    """Wait for the queue of `device`, by default the current one, if a GPU."""
    if device.type == "cuda" if device else torch.cuda.is_available():
        torch.cuda.synchronize(device)


_NODE = "autograd::engine::evaluate_function: "  # one step of backward
_WIRES = ("gloo:", "nccl")


@dataclass(frozen=True)
class Timeline:
    """When one rank computed and when it communicated, in seconds.

    Time 0 is the first event. The events of a row are in order, and neither
    overlap nor touch.
    """

    computation: tuple[Event, ...]
    communication: tuple[Event, ...]

    @property
    def rows(self) -> dict[str, tuple[Event, ...]]:
        """Both rows by name, in the form that figures and traces take."""
        return {
            "computation": self.computation,
            "communication": self.communication,
        }

    @property
    def communication_ms(self) -> float:
        """Time in ms during which at least one collective was in flight."""
        return 1000 * sum(e.until - e.at for e in self.communication)

    @property
    def overlapped_ms(self) -> float:
        """The part of `communication_ms` that overlaps computation."""
        return 1000 * sum(
            max(0.0, min(a.until, b.until) - max(a.at, b.at))
            for a in self.communication
            for b in self.computation
        )


def record(backward: Callable[[], object]) -> dict[str, Any]:
    """The profiler's Chrome trace of `backward()`, as parsed JSON."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as trace:
        backward()
        _wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        trace.export_chrome_trace(str(path))
        chrome: dict[str, Any] = json.loads(path.read_text())
        return chrome


def timeline(trace: dict[str, Any]) -> Timeline:
    """Computation and communication in a trace of one rank's backward pass.

    On a GPU these are the kernels; on a CPU the autograd graph's nodes and
    gloo's threads. AccumulateGrad nodes are left out, because DDP's hooks run
    inside them. Raises ValueError for a trace without computation.
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
    what: str, entries: Iterable[dict[str, Any]], start: float
) -> tuple[Event, ...]:
    """Chrome's entries as events, merging those that overlap or touch."""
    row: list[Event] = []
    for e in sorted(entries, key=lambda entry: entry["ts"]):
        first = (e["ts"] - start) / 1e6
        end = first + e["dur"] / 1e6
        if row and first <= row[-1].until:
            before = row.pop()
            first, end = before.at, max(end, before.until)
        row.append(Event(first, 0, what, end=end))
    return tuple(row)


def collective_seconds(
    call: Callable[[], object], repeats: int, device: torch.device
) -> float:
    """Seconds of the fastest of `repeats` calls; the same on every rank.

    Each call counts as long as on the slowest rank. The fastest call is
    taken because other work on the machine can only add time.
    """
    times = []
    for _ in range(repeats):
        dist.barrier()
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - start)
    slowest = torch.tensor(times, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.min())
