"""ZeRO as the check must refuse it: (what was thought, answer, words of the refusal)."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.scratch import wire
from course_lib.scratch.ddp import after_backward
from course_lib.scratch.zero import flatten, units_of, views
from tests.checking.builds.patches import versions


class Unit:
    """Right: it adds the gradients of micro-batches up in place, and gathers by messages' views."""

    def __init__(self, parameters, ranks, place=None):
        self.parameters, self.ranks = list(parameters), ranks
        self.whole = flatten(self.parameters, self.ranks)
        for parameter, view in views(self.whole, self.parameters):
            parameter.data = view
        self.own = self.part()
        self.master = nn.Parameter(self.own.float())
        self.gradient = None

    def part(self):
        size, rank = len(self.whole) // self.ranks, dist.get_rank()
        return self.whole[rank * size : (rank + 1) * size]

    def reduce(self):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        vector = flatten(gradients, self.ranks)
        part = wire.reduce_scatter(vector)
        if self.gradient is None:
            self.gradient = torch.zeros_like(part)
        self.gradient += part
        for parameter in self.parameters:
            parameter.grad = None

    def publish(self):
        with torch.no_grad():
            self.own.copy_(self.master)
            self.whole.copy_(wire.all_gather(self.own))


class Zero:
    """Right: it asks each unit how many gradients are missing."""

    unit = Unit

    def __init__(self, model, layers, optimizer, stage=1):
        self.ranks = dist.get_world_size()
        units = units_of(model, layers)
        self.units = {module: self.unit(parameters, self.ranks) for module, parameters in units}
        self.order = [self.units[m] for m in sorted(reversed(self.units), key=lambda m: m is model)]
        self.optimizer = optimizer([unit.master for unit in self.units.values()])
        self.next, self.stage = None, stage
        if stage == 2:
            for unit in self.order:
                for parameter in unit.parameters:
                    parameter.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, _):
        if self.next is None:
            self.next = 0
            after_backward(self._finish)
        while self.next < len(self.order):
            if any(p.grad is None for p in self.order[self.next].parameters):
                return
            self.order[self.next].reduce()
            self.next += 1

    def _finish(self):
        for unit in self.order[self.next :]:
            unit.reduce()
        self.next = None

    def reduce(self):
        if self.stage == 1:
            for unit in self.units.values():
                if unit.gradient is None:
                    unit.reduce()

    def step(self):
        self.reduce()
        for unit in self.units.values():
            unit.master.grad = unit.gradient.float()
        self.optimizer.step()
        for unit in self.units.values():
            unit.gradient = unit.master.grad = None
            unit.publish()


def total_clip(zero, limit):
    """Right: a square for each unit, all of them summed over ranks at once."""
    zero.reduce()
    parts = [unit.gradient for unit in zero.units.values()]
    squares = torch.stack([part.double().square().sum() for part in parts])
    dist.all_reduce(squares)
    norm = squares.sum().sqrt()
    for part in parts:
        part *= min(1.0, limit / max(float(norm), 1e-6))
    return float(norm)


def norms_of_ranks(zero, limit):
    """One number from each rank, gathered."""
    zero.reduce()
    own = torch.cat([unit.gradient for unit in zero.order]).norm()
    norm = wire.all_gather(own.reshape(1)).norm()
    for unit in zero.order:
        unit.gradient *= (limit / norm).clamp(max=1)
    return norm


def _answer(unit=Unit, zero=Zero, clip=total_clip):
    unit.__name__, zero.__name__, clip.__name__ = "Unit", "Zero", "clip"
    return [unit, zero, clip]


RIGHT = [
    ("adds up in place", _answer()),
    ("gathers a norm from each rank", _answer(clip=norms_of_ranks)),
]
_UNITS = r"""
    zeros behind all others
    - vector = flatten(gradients, self.ranks)
    + none = [p.grad is None for p in self.parameters]
    + behind = sorted(range(len(none)), key=lambda place: none[place])
    + vector = flatten([gradients[place] for place in behind], self.ranks)
    ? 1 `gradient` after `reduce` number 2
    parts of unequal length
    - self.whole = flatten(self.parameters, self.ranks)
    + self.whole = torch.cat([tensor.detach().flatten() for tensor in self.parameters])
    - return self.whole[rank * size : (rank + 1) * size]
    + return self.whole.tensor_split(self.ranks)[rank]
    ? 1 rank 1.*`own` has shape \(2,\), expected \(3,\)
    another part's gradient
    - part = wire.reduce_scatter(vector)
    + part = wire.all_reduce(vector).chunk(self.ranks)[(dist.get_rank() + 1) % self.ranks].clone()
    ? 1 is the part of rank 1
    the mean
    - part = wire.reduce_scatter(vector)
    + part = wire.reduce_scatter(vector) / self.ranks
    ? 1 1/3 of what is expected: the mean over ranks
    nothing is summed
    - part = wire.reduce_scatter(vector)
    + part = vector.chunk(self.ranks)[dist.get_rank()].clone()
    ? 1 what this rank itself has
    an all-reduce
    - part = wire.reduce_scatter(vector)
    + part = wire.all_reduce(vector).chunk(self.ranks)[dist.get_rank()].clone()
    ? 1 rank 0 makes more all-reduce calls
    the latest only
    - if self.gradient is None:
    + if True:
    ? 1 number 2 is that of the latest
    gradients stay
    - parameter.grad = None
    + parameter.kept = True
    ? 1 2 parameters still have a `.grad`
    nobody gathers
    - self.whole.copy_(wire.all_gather(self.own))
    ? 1 updated in the part of rank 0 only
    the master is not copied
    - self.own.copy_(self.master)
    - self.whole.copy_(wire.all_gather(self.own))
    + self.whole.copy_(wire.all_gather(self.own.clone()))
    ? 1 bf16.*what it was before the update
    a part is a copy
    - return self.whole[rank * size : (rank + 1) * size]
    + return self.whole[rank * size : (rank + 1) * size].clone()
    ? 1 `part` gives a copy
    skips None
    - gradients = [
    + if all(p.grad is None for p in self.parameters):
    +     return
    + gradients = [
    ? 1 (received another number|nothing moves|on 3 ranks)
    a buffer in fp32
    - part = wire.reduce_scatter(vector)
    + part = torch.empty(len(vector) // self.ranks)
    + wire.start_reduce_scatter(part, vector).wait()
    ? 1 raised RuntimeError
"""
_ZEROS = """
    zeros stay
    - unit.gradient = unit.master.grad = None
    + unit.gradient, unit.master.grad = torch.zeros_like(unit.own), None
    ? 2 after update 2 differs|`gradient` of a unit is not None
    the master keeps
    - unit.gradient = unit.master.grad = None
    + unit.gradient = None
    ? 2 `.grad` of a unit's `master`
    reduces each time
    - if unit.gradient is None:
    + if True:
    ? 2 more reduce-scatter calls
    stage 2 in any case
    - self.next, self.stage = None, stage
    + self.next, self.stage = None, (stage := 2)
    ? 2 more reduce-scatter calls
    skips whole units
    - for unit in self.order[self.next :]:
    -     unit.reduce()
    + for unit in self.order[self.next :]:
    +     if any(p.grad is not None for p in unit.parameters):
    +         unit.reduce()
    - if self.stage == 1:
    + if True:
    ? 4 nothing moves|of 3 units have been reduced|bytes
    one behind
    - while self.next < len(self.order):
    -     if any(p.grad is None for p in self.order[self.next].parameters):
    + while self.next + 1 < len(self.order):
    +     two = self.order[self.next : self.next + 2]
    +     if any(p.grad is None for unit in two for p in unit.parameters):
    ? 4 2 units are complete, and 1 of them
    whole states
    - optimizer([unit.master for unit in self.units.values()])
    + optimizer([nn.Parameter(unit.whole) for unit in self.units.values()])
    - for unit in self.units.values():
    -     unit.master.grad = unit.gradient.float()
    + wholes = self.optimizer.param_groups[0]["params"]
    + for unit, whole in zip(self.units.values(), wholes, strict=True):
    +     rank, size = dist.get_rank(), len(unit.own)
    +     whole.grad = torch.zeros_like(whole)
    +     whole.grad[rank * size : (rank + 1) * size] = unit.gradient
    ? 2 the optimizer keeps
    whole parameters too
    - optimizer([unit.master for unit in self.units.values()])
    + optimizer([p for unit in self.units.values() for p in [unit.master, *unit.parameters]])
    ? 2 the optimizer is given
    not published
    - unit.publish()
    ? 2 have not reached all ranks
    never dropped
    - if unit.gradient is None:
    + if True:
    - unit.gradient = unit.master.grad = None
    ? 2 gradients of earlier updates
    the mean in step
    - unit.gradient.float()
    + unit.gradient.float() / self.ranks
    ? 2 what the mean of the ranks' gradients
    the optimizer is not told
    - unit.master.grad = unit.gradient.float()
    ? 2 what it was before the update
    stage 1 by name
    - if self.next is None:
    -     self.next = 0
    -     after_backward(self._finish)
    + self.next = 0
    + return
    - if self.stage == 1:
    + if True:
    ? 4 0 of 3 units have been reduced
    after backward
    - while self.next < len(self.order):
    + while False:
    ? 4 no unit is reduced before the last
    what is complete
    - if self.next is None:
    + for unit in self.order:
    +     if all(p.grad is not None for p in unit.parameters):
    +         unit.reduce()
    + return
    + if self.next is None:
    - if self.stage == 1:
    + if True:
    ? 4 received another number of bytes|nothing moves
    one by one
    - def _arrived(self, _):
    + def _arrived(self, parameter):
    +     next(u for u in self.order if any(p is parameter for p in u.parameters)).reduce()
    +     return
    ? 4 received another number of bytes|nothing moves
    the last micro-batch
    - self.next = 0
    + self.next = 0
    + for unit in self.units.values():
    +     unit.gradient = None
    ? 4 what the last micro-batch alone
"""
_CLIPS = """
    sums gradients
    - squares = torch.stack([part.double().square().sum() for part in parts])
    - dist.all_reduce(squares)
    - norm = squares.sum().sqrt()
    + whole = [torch.zeros_like(unit.whole) for unit in zero.units.values()]
    + for vector, part in zip(whole, parts, strict=True):
    +     vector.chunk(zero.ranks)[dist.get_rank()].copy_(part)
    + norm = torch.stack([wire.all_reduce(one).square().sum() for one in whole]).sum().sqrt()
    ? 3 `clip` sends more than
    by half
    - part *= min(1.0, limit / max(float(norm), 1e-6))
    + part *= min(1.0, limit / max(float(norm), 1e-6)) * (0.5 if norm > limit else 1.0)
    ? 3 is 0.5 times what is expected
    reduces again
    - zero.reduce()
    + for unit in zero.units.values() if zero.stage == 2 else ():
    +     unit.reduce()
    + zero.reduce()
    ? 4 more reduce-scatter calls
    own norm
    - dist.all_reduce(squares)
    ? 3 that of this rank's part alone
    gathers
    - squares = torch.stack([part.double().square().sum() for part in parts])
    - dist.all_reduce(squares)
    + squares = torch.cat([wire.all_gather(part) for part in parts]).square()
    ? 3 `clip` gathers gradients, where
    unit by unit
    - for part in parts:
    -     part *= min(1.0, limit / max(float(norm), 1e-6))
    + for part, square in zip(parts, squares, strict=True):
    +     part *= min(1.0, limit / max(float(square.sqrt()), 1e-6))
    ? 3 limit 0.05.*differs in
    no root
    - norm = squares.sum().sqrt()
    + norm = squares.sum()
    ? 3 is its square
    only looks
    - part *= min(1.0, limit / max(float(norm), 1e-6))
    ? 3 is not clipped
    lengthens
    - min(1.0, limit / max(float(norm), 1e-6))
    + limit / norm
    ? 3 limit 5,.*lengthened to the limit
    norm 0
    - min(1.0, limit / max(float(norm), 1e-6))
    + norm.clamp(max=limit) / norm
    ? 3 changes a gradient of zeros
"""
WRONG = [
    *versions(Unit, _answer, _UNITS),
    *versions(Zero, lambda zero: _answer(zero=zero), _ZEROS),
    *versions(total_clip, lambda clip: _answer(clip=clip), _CLIPS),
]
