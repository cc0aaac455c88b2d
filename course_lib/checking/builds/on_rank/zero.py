"""What the check of build 8.11 runs on each rank, and in one process to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checking.builds.on_rank.small_models import Layered, rows, trained
from course_lib.measure.wire import WireLog, log_wire
from course_lib.scratch.ledger import ledger
from course_lib.scratch.zero.flat import flatten, units_of

REDUCED = 3  # times
SHAPES = ((2, 3), (1,))  # 7 numbers: neither 2 nor 3 ranks divide them
# A large epsilon: without it Adam's update is nearly the same for any multiple of the gradient.
ADAM = partial(torch.optim.AdamW, lr=0.05, eps=0.1, weight_decay=0.1)
MICRO_BATCHES = (1, 2)  # of the updates of stage 1
Weights = dict[str, Tensor]


# -- one unit --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundUnit:
    """What a rank found: its part, what it has after each `reduce`, the weights after `publish`."""

    own: Tensor
    is_view: bool  # of `whole`
    reduced: list[Any]
    left: int  # parameters that still have a `.grad`
    published: list[Tensor]
    in_bf16: list[Tensor]
    reduced_bf16: Any
    wire: WireLog


def one_unit(unit_class: Any) -> FoundUnit:
    """Reduce three times: all gradients, one missing on rank 1, both missing; update; publish."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parameters = [nn.Parameter(each) for each in numbers(0, 9)]
    unit = unit_class(parameters, ranks)
    own, reduced = unit.own.detach().clone(), []
    is_view = unit.own.untyped_storage().data_ptr() == unit.whole.untyped_storage().data_ptr()
    shortest = torch.tensor(own.numel())
    dist.all_reduce(shortest, dist.ReduceOp.MIN)
    if shortest != -(-sum(p.numel() for p in parameters) // ranks):
        return FoundUnit(own, is_view, [], 0, [], [], None, WireLog())  # all else is wrong too
    with log_wire() as log:
        for number in range(REDUCED):
            for parameter, gradient in zip(parameters, made(rank, number), strict=True):
                parameter.grad = gradient
            unit.reduce()
            found = unit.gradient
            reduced.append(found.clone() if isinstance(found, Tensor) else found)
        left = sum(p.grad is not None for p in parameters)
        published = publish(unit, rank)
    half = unit_class([nn.Parameter(torch.ones(7, dtype=torch.bfloat16))], ranks)
    half.parameters[0].grad = torch.full((7,), rank + 1.0, dtype=torch.bfloat16)
    half.reduce()
    in_bf16 = publish(half, rank)
    return FoundUnit(own, is_view, reduced, left, published, in_bf16, half.gradient, log)


def publish(unit: Any, rank: int) -> list[Tensor]:
    """Add rank + 1 to this rank's part, and give it to all."""
    with torch.no_grad():
        unit.master.add_(rank + 1)
        unit.publish()
    return [parameter.detach().clone() for parameter in unit.parameters]


def numbers(rank: int, number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(10 * number + rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def made(rank: int, number: int) -> list[Tensor | None]:
    """The gradients of a rank.

    In the second backward pass rank 1 makes one and rank 2 the other; rank 1 none in its third.
    """
    first, second = numbers(rank, number)
    return [
        None if (rank, number) in ((1, 2), (2, 1)) else first,
        None if rank == 1 and number else second,
    ]


def flat(tensors: Sequence[Tensor | None], ranks: int) -> Tensor:
    """One padded vector, zeros where there is no gradient."""
    pairs = zip(tensors, SHAPES, strict=True)
    return flatten([torch.zeros(shape) if t is None else t for t, shape in pairs], ranks)


# -- training --------------------------------------------------------------------------------------


Use = tuple[bool | None, bool]  # of `Layered`'s two layers


def share(model: nn.Module, rank: int, ranks: int, number: int, both: Use) -> Tensor:
    """This rank's share of the mean loss over the rows of all ranks."""
    loss: Tensor = model(rows(rank, number), both)
    return loss / sum(len(rows(one, number)) for one in range(ranks))


def weights(model: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in trained(model).items()}


def everything(_rank: int, _number: int) -> Use:
    return True, True


def by_turns(rank: int, number: int) -> Use:
    """In every second micro-batch the ranks differ in what they use: rank 1 leaves a layer out."""
    return (True, True) if number % 2 == 0 else (None if rank == 1 else False, rank % 2 == 0)


@dataclass(frozen=True)
class Found:
    """What a rank found in a training."""

    weights: list[Weights]  # after each update
    state_bytes: int  # of the optimizer
    given: int  # numbers in the optimizer's parameters
    wire: WireLog  # of the last update
    left: str  # a gradient that is there after `step`


def updates(zero_class: Any) -> Found:
    """Two updates under stage 1, in the second of which `reduce` is called before."""
    rank, ranks, model = dist.get_rank(), dist.get_world_size(), Layered()
    zero = zero_class(model, model.layers, ADAM, stage=1)
    after, number = list[Weights](), 0
    for micro_batches in MICRO_BATCHES:
        with log_wire() as log:
            for _ in range(micro_batches):
                (share(model, rank, ranks, number, (True, True)) / micro_batches).backward()
                number += 1
            for _ in range(2 if after else 0):
                zero.reduce()
            zero.step()
        after.append(weights(model))
    return Found(after, *held(model, zero), log, left_in(zero))


def held(model: nn.Module, zero: Any) -> tuple[int, int]:
    """Bytes of the optimizer's states, and numbers in its parameters."""
    given = sum(p.numel() for group in zero.optimizer.param_groups for p in group["params"])
    return ledger(model, zero.optimizer)["optimizer"], given


def left_in(zero: Any) -> str:
    """Words for a gradient that is still there after `step`, "" for none."""
    for unit in zero.units.values():
        if unit.gradient is not None:
            return "`gradient` of a unit is not None"
        if unit.master.grad is not None:
            return "`.grad` of a unit's `master` is not None"
        if any(parameter.grad is not None for parameter in unit.parameters):
            return "`.grad` of a parameter is not None"
    return ""


@dataclass(frozen=True)
class Clipped:
    """What a rank found when it clipped: the norm, its part of the gradient, what that sent."""

    norm: Any
    gradient: Tensor
    wire: WireLog


def clipped(zero_class: Any, clip: Any, limits: Sequence[float]) -> tuple[list[Clipped], bool]:
    """One backward pass for each limit, clipped to it; whether zeros stay zeros."""
    rank, ranks, found = dist.get_rank(), dist.get_world_size(), []
    for limit in limits:
        model = Layered()
        zero = zero_class(model, model.layers, ADAM, stage=1)
        share(model, rank, ranks, 0, (True, True)).backward()
        with log_wire() as log:
            norm = clip(zero, limit)
        own = torch.cat([unit.gradient for unit in zero.units.values()])
        found.append(Clipped(norm, own, log))
    zero = zero_class(model := Layered(), model.layers, ADAM, stage=1)
    (0 * share(model, rank, ranks, 0, (True, True))).backward()
    clip(zero, limits[0])
    return found, all(bool((unit.gradient == 0).all()) for unit in zero.units.values())


@dataclass(frozen=True)
class Reduced:
    """A backward pass of stage 2: sums begun before the last gradient, and at its end."""

    before_the_last: int
    at_the_end: int
    left: int  # parameters that still have a `.grad`


def stage_2(zero_class: Any, clip: Any) -> tuple[list[Reduced], Found, Any]:
    """Two updates of two micro-batches each; the norm that `clip` gives before the second one."""
    rank, ranks, model = dist.get_rank(), dist.get_world_size(), Layered()
    counts: list[int] = []  # sums begun, at each gradient
    logs = [WireLog()]
    for parameter in trained(model).values():
        parameter.register_post_accumulate_grad_hook(lambda _: counts.append(scatters(logs[-1])))
    zero = zero_class(model, model.layers, ADAM, stage=2)
    passes, after = [], []
    for number in range(4):
        with log_wire() as log:
            logs.append(log)
            (share(model, rank, ranks, number, by_turns(rank, number)) / 2).backward()
        left = sum(p.grad is not None for p in model.parameters())
        passes.append(Reduced(counts[-1], scatters(log), left))
        if number % 2:
            with log_wire() as clipping:
                norm = clip(zero, 1e9)
            with log_wire() as log:
                zero.step()
            again = [call for call in clipping.calls if call.what == "reduce-scatter"]
            logs.append(WireLog(again + log.calls))
            after.append(weights(model))
    calls = [call for log in logs[-3:] for call in log.calls]
    last = WireLog(calls)
    return passes, Found(after, *held(model, zero), last, left_in(zero)), norm


def scatters(log: WireLog) -> int:
    return sum(call.what == "reduce-scatter" for call in log.calls)


# -- in one process --------------------------------------------------------------------------------


def alone(
    ranks: int,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    use: Any = everything,
    scale: float = 1.0,
    keeps: bool = False,
    latest: bool = False,
) -> list[Weights]:
    """The weights after each update of one process that has all rows.

    `scale` multiplies the gradient; `keeps`: gradients are not dropped after an update; `latest`:
    those of the last micro-batch replace all others.
    """
    model = Layered()
    optimizer, number = ADAM(model.parameters()), 0
    after: list[Weights] = []
    for count in micro_batches:
        if not (keeps and after):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        for micro_batch in range(count):
            for rank in range(ranks if not latest or micro_batch == count - 1 else 0):
                loss = share(model, rank, ranks, number, use(rank, number))
                (scale * loss / count).backward()
            number += 1
        optimizer.step()
        after.append(weights(model))
    return after


def last_norm(ranks: int, began: Weights) -> Tensor:
    """That of the gradient of stage 2's second update, which began with these weights."""
    model = Layered()
    model.load_state_dict(began)
    for number in (2, 3):
        for rank in range(ranks):
            (share(model, rank, ranks, number, by_turns(rank, number)) / 2).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()


def at_the_start() -> Weights:
    return weights(Layered())


def unit_sizes() -> list[int]:
    """Parameters of each unit."""
    model = Layered()
    return [sum(p.numel() for p in unit) for _, unit in units_of(model, model.layers)]


def gradient_parts(ranks: int) -> list[Tensor]:
    """What each rank owns of the whole gradient, unit behind unit."""
    model = Layered()
    for rank in range(ranks):
        share(model, rank, ranks, 0, (True, True)).backward()
    units = [
        [p.grad for p in unit if p.grad is not None] for _, unit in units_of(model, model.layers)
    ]
    cut = [flatten(unit, ranks).chunk(ranks) for unit in units]
    return [torch.cat([parts[rank] for parts in cut]) for rank in range(ranks)]
