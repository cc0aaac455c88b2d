"""Observes the learner's work on a rank of a check: its calls, messages, and live tensors.

A rank that hangs or is killed returns no result, so each rank writes its latest call to a log file,
followed by the learner's line that made it.
"""

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from course_lib.checking.own_work import Own, calls, is_learners, line_of
from course_lib.measure.peak import tensor_bytes
from course_lib.measure.wire import Listener, WireLog, log_wire
from course_lib.scratch.context import Passing, SequenceRing

# --- The learner's work, and a log of its calls -------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The result of one rank, and the messages and collectives that it sent.

    `borrowed`: names of the course's own version that the learner's code called.
    """

    value: Any
    wire: WireLog
    borrowed: frozenset[str] = frozenset()


_WIDTH = 300
_call_log = {"file": -1, "entry": 0}  # this rank's: file descriptor, number of meetings


def followed(
    work: Callable[..., Any], args: tuple[Any, ...], folder: str, own: Own | None
) -> Outcome:
    """Run the work on a rank, writing its latest call to the log in `folder`."""
    log = os.open(Path(folder) / os.environ["RANK"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def heard(operator: Any, args: tuple[Any, ...], _options: Any, _result: Any) -> None:
        if words := _words(str(operator).rpartition(".")[0], args):
            os.pwrite(log, f"{words}\n{_line()}".ljust(_WIDTH).encode()[:_WIDTH], 0)

    with log_wire() as wire, Listener(heard, inside_dtensors=True), calls(own) as borrowed:
        _call_log.update(file=log, entry=0)
        value = work(*args)
    os.pwrite(log, "has returned".ljust(_WIDTH).encode(), 0)
    return Outcome(value, wire, frozenset(borrowed))


def meet(done: str) -> None:
    """Barrier through the store; logs `done`, such as "has done f", as this rank's latest action.

    No collective is used, since a rank that skipped one would match it with this barrier.
    """
    store, note = distributed_c10d._get_default_store(), f"{_call_log['entry']} {done}"
    os.pwrite(_call_log["file"], done.ljust(_WIDTH).encode(), 0)
    _call_log["entry"] += 1
    if store.add(note, 1) == dist.get_world_size():
        store.set(f"{note}: all", "")
    store.wait([f"{note}: all"])


def _line() -> str:
    """The innermost line of the learner's code on the current stack; "" if there is none."""
    frame: Any = sys._getframe()
    while frame is not None and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else line_of(frame.f_code.co_filename, frame.f_lineno)


def _words(operator: str, args: tuple[Any, ...]) -> str:
    """A phrase on what a call waits for; "" for an operator that does not communicate."""
    namespace, _, call = operator.partition(".")
    if namespace not in ("c10d", "_c10d_functional"):
        return ""
    if call in ("send", "recv_"):
        verb = "sends to" if call == "send" else "waits for a message from"
        return f"{verb} rank {args[2]}"
    return f"is in {call.strip('_')}"


# --- The process groups that the learner's work requests ----------------------------------------


def groups_asked_for(work: Callable[[], object]) -> list[list[int]]:
    """The ranks of each group that `work()` requests by new_group, in order; creates none."""
    asked: list[list[int]] = []

    def new_group(ranks: Sequence[int] | None = None, *_: Any, **__: Any) -> Any:
        asked.append(list(range(dist.get_world_size()) if ranks is None else ranks))
        return dist.group.WORLD if dist.get_rank() in asked[-1] else None

    with (
        patch.object(dist, "new_group", new_group),
        patch.object(distributed_c10d, "new_group", new_group),
    ):
        work()
    return asked


# --- A ring that records whether computation overlaps each hop ----------------------------------


_PRODUCTS = ("mm", "attention", "einsum", "matmul")


class WatchedRing(SequenceRing):
    """A ring that records its hops without overlap, by number.

    `idle`: no product was computed between the hop's start and its wait. `late`: matrix products
    were computed before the hop's start while no hop was in flight.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.products, self.hops = 0, 0
        self.matrices, self.arrived = 0, 0  # matrix products: so far, and at the last wait
        self.idle: list[int] = []
        self.late: list[int] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count products: matrix products, and any square result (queries × keys of a chunk)."""

        def heard(operator: Any, _args: Any, _options: Any, result: Any) -> None:
            shape = list(getattr(result, "shape", ()))[-2:]
            scores = len(shape) == 2 and shape[0] == shape[1]
            matrices = any(name in str(operator) for name in _PRODUCTS)
            self.products += scores or matrices
            self.matrices += matrices

        with Listener(heard):
            yield

    def start(self, tensor: Tensor) -> Passing:
        self.hops += 1
        if self.matrices > self.arrived:
            self.late.append(self.hops)
        passing, number, before = super().start(tensor), self.hops, self.products
        arrive = passing.wait

        def wait() -> Tensor:
            if self.products == before:
                self.idle.append(number)
            self.arrived = self.matrices
            return arrive()

        passing.wait = wait  # type: ignore[method-assign]
        return passing


# --- Arguments that must not change, and running an autograd function forward and backward ------


def kept(given: Mapping[str, Tensor]) -> Callable[[], dict[str, bool]]:
    """Copy these tensors; returns a function that says, for `unchanged`, which are still equal."""
    before = {name: tensor.detach().clone() for name, tensor in given.items()}
    return lambda: {name: torch.equal(tensor, before[name]) for name, tensor in given.items()}


def both_passes(
    function: Any, x: Tensor, upstream: Tensor, group: Any, whose: str
) -> Iterator[tuple[Any, ...] | None]:
    """Run the forward pass and yield None; then the backward pass, if the result's shape is right.

    Then yields the result, the gradient of `x`, the WireLog of each pass, and which arguments are
    unchanged.
    """
    same = kept({"its argument": x, "the gradient that it is given": upstream})
    x.requires_grad_()
    with log_wire() as forward:
        result = function.apply(x, group)
    meet(f"has done {whose} forward pass")
    yield None
    with log_wire() as backward:
        if result.shape == upstream.shape:
            result.backward(upstream)
    meet(f"has done {whose} backward pass")
    yield result.detach(), x.grad, forward, backward, same()


# --- The tensors that an object keeps alive -----------------------------------------------------


_SHARED = (type, ModuleType, ProcessGroup)  # not owned by the object: not searched


def tensor_bytes_of(root: Any) -> int:
    """Bytes of the tensors reachable from `root` through attributes, containers and closures."""
    tensors: list[Tensor] = []
    seen, waiting = set(), [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            tensors.append(one.detach())
        elif isinstance(one, FunctionType):
            waiting += [one.__closure__, one.__defaults__]
        else:
            waiting += gc.get_referents(one)
    return tensor_bytes(tensors)


# --- Which collectives were started, and which of them have been waited for ---------------------


_ASKS = ("wait", "synchronize", "is_completed", "get_future", "block_current_stream")
_GATHERS = (4, 5)  # torch's OpType ALLGATHER, _ALLGATHER_BASE; gloo's reduce-scatter has none


class Traffic:
    """All-gathers and reduce-scatters of a block of code, as logged in `log`.

    `waited` counts those that the code has waited for or polled.
    """

    def __init__(self, log: WireLog) -> None:
        self.log, self.asked = log, list[Any]()
        self.waited, self.most = Counter[str](), Counter[str]()  # `most`: in flight at once

    def started(self, operation: str) -> int:
        return sum(call.what == operation for call in self.log.calls)

    def under_way(self, operation: str) -> int:
        return max(0, self.started(operation) - self.waited[operation])  # one rank starts none

    def ask(self, work: Any) -> None:
        if all(work is not one for one in self.asked):
            self.asked.append(work)
            gathers = int(work._get_op_type()) in _GATHERS
            operation = "all-gather" if gathers else "reduce-scatter"
            self.most[operation] = max(self.most[operation], self.under_way(operation))
            self.waited[operation] += 1


@contextmanager
def followed_traffic() -> Iterator[Traffic]:
    """Yield the Traffic of the block; keeps the Work objects alive until its end."""
    with log_wire() as log, ExitStack() as patched:
        traffic = Traffic(log)

        def asking(real: Any) -> Any:
            def ask(work: Any, *given: Any, **named: Any) -> Any:
                traffic.ask(work)
                return real(work, *given, **named)

            return ask

        for name in _ASKS:
            patched.enter_context(patch.object(dist.Work, name, asking(getattr(dist.Work, name))))
        yield traffic


@contextmanager
def in_case(what: str) -> Iterator[None]:
    """Prefix the text of exceptions by `what`, such as "in a group of ranks 0 and 2"."""
    try:
        yield
    except Exception as error:
        error.args = (f"{what}: {error}",)
        raise


def own_group() -> dist.ProcessGroup:
    """Create two groups, rank 1 alone and all others; return this rank's."""
    others = dist.new_group([rank for rank in range(dist.get_world_size()) if rank != 1])
    alone = dist.new_group([1])
    return alone if dist.get_rank() == 1 else others
