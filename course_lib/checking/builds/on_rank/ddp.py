"""What the check of build 7.10 runs on each rank, and in one process to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checking.builds.on_rank.small_models import BOTH, Branches, gradients, rows, trained
from course_lib.measure.wire import WireLog, log_wire
from course_lib.scratch.collectives.peers import Peers
from course_lib.scratch.replicas.buckets import fill
from course_lib.scratch.replicas.ring_sum import RingSum

Gradients = dict[str, Tensor | None]  # by the names of their parameters
CAP_BYTES = 100  # each layer of `Branches` fills a bucket of its own
FIRST_BYTES = 20  # of one bias
SHAPES = ((2, 3), (1,), (4,))  # of what is laid into one bucket


class Promise:
    """A sum over ranks that is made when it is waited for."""

    def __init__(self, flat: Tensor, events: list[Any]) -> None:
        self.flat, self.events, self.done = flat, events, False

    def wait(self) -> None:
        if not self.done:
            dist.all_reduce(self.flat)
            self.events.append("arrived")
        self.done = True


class Nothing:
    """A sum that nobody makes: no rank waits for another."""

    def wait(self) -> None:
        pass


@dataclass
class Diary:
    """What happens on a rank in a backward pass, in its order.

    A name: this parameter's gradient is there; a number: as many bytes are given to `all_reduce`;
    "arrived": a sum has been waited for.
    """

    events: list[Any] = field(default_factory=list)

    def all_reduce(self, flat: Tensor) -> Promise:
        self.events.append(flat.nbytes)
        return Promise(flat, self.events)

    def follow(self, model: nn.Module) -> None:
        for name, parameter in trained(model).items():
            parameter.register_post_accumulate_grad_hook(partial(self._there, name))

    def _there(self, name: str, _: Tensor) -> None:
        self.events.append(name)


# -- one bucket ------------------------------------------------------------------------------------


def bucketed(bucket: Any) -> tuple[list[list[Tensor | None]], list[Any], bool]:
    """`.grad` of each parameter after each of two rounds; the bytes sent; if `send` has waited."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    held, diary, found, waits = bucket(parameters), Diary(), [], False
    for number in range(2):
        for parameter, own in zip(parameters, laid_in(dist.get_rank(), number), strict=True):
            parameter.grad = own
            held.take(parameter)
        held.send(diary.all_reduce)
        waits |= diary.events[-1:] == ["arrived"]
        held.receive()
        found.append([None if p.grad is None else p.grad.clone() for p in parameters])
    return found, [event for event in diary.events if event != "arrived"], waits


def laid_in(rank: int, number: int) -> list[Tensor]:
    """The gradients of a rank in one round."""
    generator = torch.Generator().manual_seed(10 * number + rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


# -- DDP -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Passes:
    """What a rank found: all weights and buffers at the start, gradients after each pass."""

    state: dict[str, Tensor]
    gradients: list[Gradients]
    sent: WireLog  # in the first pass, by torch's own all-reduce
    added: Gradients  # after a second one behind it, without zero_grad
    events: list[list[Any]]  # of each pass, by the diary's


def wrapped(ddp_class: Any, **options: Any) -> Any:
    """DDP of a model whose weights differ over the ranks."""
    return ddp_class(Branches(seed=dist.get_rank()), CAP_BYTES, CAP_BYTES, **options)


def order_of(rank: int) -> tuple[str, ...]:
    """Odd ranks compute their branches the other way round."""
    return BOTH[::-1] if rank % 2 else BOTH


def two_passes(ddp_class: Any) -> Passes:
    """Two backward passes by torch's all-reduce, then two that are written down."""
    rank = dist.get_rank()
    plain = wrapped(ddp_class)
    state = {name: value.clone() for name, value in plain.module.state_dict().items()}
    with log_wire() as log:
        plain(rows(rank, 0), order_of(rank)).backward()
    found = [gradients(plain.module)]
    plain(rows(rank, 1), order_of(rank)).backward()
    added = gradients(plain.module)
    events = []
    diary, model = Diary(), Branches(seed=rank)
    diary.follow(model)
    ddp = ddp_class(model, CAP_BYTES, CAP_BYTES, all_reduce=diary.all_reduce)
    for number in range(2):
        diary.events.clear()
        ddp.zero_grad()
        ddp(rows(rank, number), order_of(rank)).backward()
        events.append(list(diary.events))
        found.append(gradients(model))
    return Passes(state, found, log, added, events)


def with_no_sync(ddp_class: Any) -> tuple[list[Gradients], list[WireLog], bool]:
    """Two passes of which the first is quiet; one after an error in no_sync; what each sent.

    And whether that error came out of it.
    """
    rank, found, sent, came_out = dist.get_rank(), [], [], False
    ddp = ddp_class(Branches(seed=rank), CAP_BYTES, FIRST_BYTES)
    with log_wire() as log, ddp.no_sync():
        ddp(rows(rank, 0), order_of(rank)).backward()
    sent.append(log)
    for number in (1, 2):
        if number == 2:
            try:
                with ddp.no_sync():
                    raise ZeroDivisionError
            except ZeroDivisionError:
                came_out = True
        with log_wire() as log:
            ddp(rows(rank, number), order_of(rank)).backward()
        sent.append(log)
        found.append(gradients(ddp.module))
        ddp.zero_grad()
    return found, sent, came_out


def one_leaves_out(ddp_class: Any) -> list[tuple[str, str]]:
    """What is raised where rank 1 leaves a branch out: a whole bucket, or a part of one."""
    return [_left_out(ddp_class, cap) for cap in (CAP_BYTES, 2**20)]


def _left_out(ddp_class: Any, cap: int) -> tuple[str, str]:
    """The kind and words of what is raised; "" for nothing."""
    ddp = ddp_class(Branches(seed=dist.get_rank()), cap, cap, all_reduce=lambda _: Nothing())
    try:
        ddp(rows(0, 0), BOTH if dist.get_rank() == 0 else BOTH[:1]).backward()
    except Exception as error:
        kind = "RuntimeError" if isinstance(error, RuntimeError) else type(error).__name__
        return kind, str(error)
    return "", ""


def finds_unused(ddp_class: Any) -> list[Gradients]:
    """The gradients where others leave a branch out, all do, or only a quiet pass has used it."""
    rank, found = dist.get_rank(), []
    ddp = wrapped(ddp_class, find_unused=True)
    ddp(rows(rank, 0), BOTH if rank == 0 else BOTH[:1]).backward()
    found.append(gradients(ddp.module))
    ddp.zero_grad()
    ddp(rows(rank, 0), BOTH[:1]).backward()
    found.append(gradients(ddp.module))
    ddp.zero_grad()
    with ddp.no_sync():
        ddp(rows(rank, 1), BOTH).backward()
    ddp(rows(rank, 2), BOTH[:1]).backward()
    return [*found, gradients(ddp.module)]


def on_a_ring(ddp_class: Any, reduce_scatter: Any, all_gather: Any) -> tuple[Gradients, WireLog]:
    """The gradients of one pass by a ring, and what was sent."""
    rank, peers = dist.get_rank(), Peers()
    ring = partial(RingSum, peers=peers, reduce_scatter=reduce_scatter, all_gather=all_gather)
    ddp = wrapped(ddp_class, all_reduce=ring)
    with log_wire() as log:
        ddp(rows(rank, 0), order_of(rank)).backward()
    return gradients(ddp.module), log


# -- in one process --------------------------------------------------------------------------------


def alone(rank: int, *passes: tuple[int, tuple[str, ...]]) -> Gradients:
    """The gradients of a rank's own rows, of some backward passes (number, order) together."""
    model = Branches()
    for number, order in passes:
        model(rows(rank, number), order).backward()
    return gradients(model)


def buckets() -> list[list[str]]:
    """The names of the parameters in each bucket."""
    names = {parameter: name for name, parameter in trained(Branches()).items()}
    return [[names[p] for p in bucket] for bucket in fill(names, CAP_BYTES, CAP_BYTES)]


def gradient_bytes() -> list[int]:
    """Bytes of each gradient, in the order of the buckets."""
    return [p.nbytes for p in reversed(list(trained(Branches()).values()))]


def zero_where_none(each: Sequence[Tensor | None], key: str) -> list[Tensor]:
    """Every rank's gradient of a parameter; zeros where a rank has none."""
    like = trained(Branches())[key]
    return [torch.zeros_like(like) if one is None else one for one in each]
