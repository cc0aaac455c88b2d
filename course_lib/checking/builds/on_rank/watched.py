"""What watches the learner's work on a rank of a check: its calls, what it sends and keeps alive.

A rank that waits endlessly, or is killed, leaves no answer, so each rank writes its latest call
into a file, and below it the line of the learner's that made it.
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

# --- The learner's work, and a diary of its calls -----------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What one rank returned, the messages and collectives that it sent on the way.

    `borrowed`: what of the course's own version the learner's code has called.
    """

    value: Any
    wire: WireLog
    borrowed: frozenset[str] = frozenset()


_WIDTH = 300
_diary = {"file": -1, "entry": 0}  # of this rank


def followed(
    work: Callable[..., Any], args: tuple[Any, ...], folder: str, own: Own | None
) -> Outcome:
    """On a rank: do the work and write down every call."""
    diary = os.open(Path(folder) / os.environ["RANK"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def heard(operator: Any, args: tuple[Any, ...], _options: Any, _result: Any) -> None:
        if words := _words(str(operator).rpartition(".")[0], args):
            os.pwrite(diary, f"{words}\n{_line()}".ljust(_WIDTH).encode()[:_WIDTH], 0)

    with log_wire() as wire, Listener(heard, inside_dtensors=True), calls(own) as borrowed:
        _diary.update(file=diary, entry=0)
        value = work(*args)
    os.pwrite(diary, "has returned".ljust(_WIDTH).encode(), 0)
    return Outcome(value, wire, frozenset(borrowed))


def meet(done: str) -> None:
    """Wait here for all ranks, by no collective: `done`, such as "has done f", is the diary's last.

    So a rank that has left out a collective does not take part in the next one instead.
    """
    store, note = distributed_c10d._get_default_store(), f"{_diary['entry']} {done}"
    os.pwrite(_diary["file"], done.ljust(_WIDTH).encode(), 0)
    _diary["entry"] += 1
    if store.add(note, 1) == dist.get_world_size():
        store.set(f"{note}: all", "")
    store.wait([f"{note}: all"])


def _line() -> str:
    """The innermost line of the learner's that runs now, "" for none."""
    frame: Any = sys._getframe()
    while frame is not None and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else line_of(frame.f_code.co_filename, frame.f_lineno)


def _words(operator: str, args: tuple[Any, ...]) -> str:
    """What a call waits for, in words; "" for an operator that sends nothing."""
    room, _, call = operator.partition(".")
    if room not in ("c10d", "_c10d_functional"):
        return ""
    if call in ("send", "recv_"):
        verb = "sends to" if call == "send" else "waits for a message from"
        return f"{verb} rank {args[2]}"
    return f"is in {call.strip('_')}"


# --- The groups that a rank asks torch for ------------------------------------------------------


def groups_asked_for(work: Callable[[], object]) -> list[list[int]]:
    """The ranks of the groups that `work()` asks torch for, in order; none of them is made."""
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


# --- A ring that knows whether something is computed while a hop travels ------------------------


_PRODUCTS = ("mm", "attention", "einsum", "matmul")


class WatchedRing(SequenceRing):
    """`idle` has the numbers of the hops between whose start and wait no product was computed.

    `late` has those before whose start products of matrices were computed with none under way.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.products, self.hops = 0, 0
        self.matrices, self.arrived = 0, 0  # products of matrices, and those until the last wait
        self.idle: list[int] = []
        self.late: list[int] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count products: of matrices, or anything of queries × keys of a chunk."""

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


# --- What the learner's work gets, and an autograd function, forward and backward ---------------


def kept(given: Mapping[str, Tensor]) -> Callable[[], dict[str, bool]]:
    """A function that says later, for `unchanged`, which of these tensors are what they are now."""
    before = {name: tensor.detach().clone() for name, tensor in given.items()}
    return lambda: {name: torch.equal(tensor, before[name]) for name, tensor in given.items()}


def both_passes(
    function: Any, x: Tensor, upstream: Tensor, group: Any, whose: str
) -> Iterator[tuple[Any, ...] | None]:
    """Goes forward and yields; then backward, unless the result has another shape.

    Yields result, gradient of `x`, what was sent in each pass, and what of its arguments is as it
    was, for `unchanged`.
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


_SHARED = (type, ModuleType, ProcessGroup)  # others have them as well


def tensor_bytes_of(root: Any) -> int:
    """Bytes of the tensors that `root` leads to, through attributes, lists and closures alike."""
    found: list[Tensor] = []
    seen, waiting = set(), [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.append(one.detach())
        elif isinstance(one, FunctionType):
            waiting += [one.__closure__, one.__defaults__]
        else:
            waiting += gc.get_referents(one)
    return tensor_bytes(found)


# --- Which collectives were started, and which of them were waited for --------------------------


_ASKS = ("wait", "synchronize", "is_completed", "get_future", "block_current_stream")
_GATHERS = (4, 5)  # torch's OpType ALLGATHER, _ALLGATHER_BASE; gloo's reduce-scatter has none


class Traffic:
    """All-gathers and reduce-scatters of a block of code, as `log` has them.

    `waited` counts those that somebody has waited for, or has asked whether they have ended.
    """

    def __init__(self, log: WireLog) -> None:
        self.log, self.asked = log, list[Any]()
        self.waited, self.most = Counter[str](), Counter[str]()  # `most`: under way at once

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
    """The traffic inside; it keeps what is sent alive until its end."""
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
    """Put `what`, as in "in a group of ranks 0 and 2", before what is raised inside."""
    try:
        yield
    except Exception as error:
        error.args = (f"{what}: {error}",)
        raise


def own_group() -> dist.ProcessGroup:
    """All ranks but 1 make one group, and rank 1 one for itself."""
    others = dist.new_group([rank for rank in range(dist.get_world_size()) if rank != 1])
    alone = dist.new_group([1])
    return alone if dist.get_rank() == 1 else others
