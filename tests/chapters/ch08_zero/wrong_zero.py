"""ZeRO as the check must refuse it, as patches of the course's own, and other right ones."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.scratch import wire
from course_lib.scratch.ddp import after_backward
from course_lib.scratch.zero import Unit, Zero, clip, flatten, units_of, views
from tests.checking.builds.patches import versions


class InPlace:
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


class Missing:
    """Right: it asks each unit how many gradients are missing."""

    unit = InPlace

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


InPlace.__name__, Missing.__name__ = "Unit", "Zero"
total_clip.__name__ = norms_of_ranks.__name__ = "clip"
RIGHT = [
    ("adds up in place", [InPlace, Missing, total_clip]),
    ("gathers a norm from each rank", [InPlace, Missing, norms_of_ranks]),
]
_UNITS = r"""
    zeros behind all others
    - flatten(gradients, self.ranks)
    + flatten(sorted(gradients, key=lambda one: not one.any()), self.ranks)
    ? 1 `gradient` after `reduce` number 2
    parts of unequal length
    - flatten(self.parameters, ranks)
    + torch.cat([tensor.detach().flatten() for tensor in self.parameters])
    - self.whole.chunk(self.ranks)[dist.get_rank() % self.ranks]
    + self.whole.tensor_split(self.ranks)[dist.get_rank()]
    ? 1 rank 1.*`own` has shape \(2,\), expected \(3,\)
    another part's gradient
    - collective(flatten(gradients, self.ranks))
    + wire.all_reduce(flatten(gradients, self.ranks)).chunk(self.ranks)[1].clone()
    ? 1 is the part of rank 1
    the mean
    + collective(flatten(gradients, self.ranks)) / self.ranks
    ? 1 1/3 of what is expected: the mean over ranks
    nothing is summed
    + flatten(gradients, self.ranks).chunk(self.ranks)[dist.get_rank()].clone()
    ? 1 what this rank itself has
    an all-reduce
    + wire.all_reduce(flatten(gradients, self.ranks)).chunk(self.ranks)[dist.get_rank()].clone()
    ? 1 rank 0 makes more all-reduce calls
    the latest only
    - part if self.gradient is None else self.gradient + part
    + part
    ? 1 number 2 is that of the latest
    gradients stay
    - parameter.grad = None
    + pass
    ? 1 2 parameters still have a `.grad`
    nobody gathers
    - wire.start_all_gather(self.whole, self.own).wait()
    + pass
    ? 1 updated in the part of rank 0 only
    the master is not copied
    - self.round()
    + pass
    ? 1 bf16.*what it was before the update
    a part is a copy
    - [dist.get_rank() % self.ranks]
    + [dist.get_rank() % self.ranks].clone()
    ? 1 `part` gives a copy
    skips None
    - gradients = [
    + if all(p.grad is None for p in self.parameters):
    +     return
    + gradients = [
    ? 1 (received another number|nothing moves|on 3 ranks)
"""
_ZEROS = """
    the master keeps
    - self.optimizer.zero_grad()
    + pass
    ? 2 `.grad` of a unit's `master`
    reduces each time
    - if unit.gradient is None:
    + if True:
    ? 2 more reduce-scatter calls
    never dropped
    + if True:
    - unit.gradient = None
    + pass
    ? 2 gradients of earlier updates
    whole states
    - [u.master for u in self.units.values()]
    + [nn.Parameter(u.whole) for u in self.units.values()]
    - self.optimizer.step()
    + wholes = self.optimizer.param_groups[0]["params"]
    + for unit, whole in zip(self.units.values(), wholes, strict=True):
    +     whole.grad = torch.zeros_like(whole)
    +     whole.grad.chunk(self.ranks)[dist.get_rank()].copy_(unit.master.grad)
    +     unit.master.grad = None
    + self.optimizer.step()
    ? 2 the optimizer keeps
    whole parameters too
    + [p for u in self.units.values() for p in (u.master, *u.parameters)]
    ? 2 the optimizer is given
    not published
    - unit.publish()
    + pass
    ? 2 have not reached all ranks
    the mean in step
    - unit.reduced().float()
    + unit.reduced().float() / self.ranks
    ? 2 what the mean of the ranks' gradients
    stage 1 by name
    - stage >= 2
    + stage > 2
    ? 4 0 of 3 units have been reduced
    skips whole units
    - self.reduce_waiting()
    + for unit in self.waiting:
    +     if any(p.grad is not None for p in unit.parameters):
    +         unit.reduce()
    ? 4 nothing moves|of 3 units have been reduced|bytes
    one behind
    - self.waiting and self.waiting[0].is_complete()
    + len(self.waiting) > 1 and all(unit.is_complete() for unit in self.waiting[:2])
    ? 4 2 units are complete, and 1 of them
    after backward
    + False
    ? 4 no unit is reduced before the last
    the last micro-batch
    - self.waiting = list(self.order)
    + self.waiting = list(self.order)
    + for unit in self.order:
    +     unit.gradient = None
    ? 4 what the last micro-batch alone
"""
_CLIPS = """
    own norm
    - norm(zero)
    + own_norm(zero)
    ? 3 that of this rank's part alone
    no root
    + norm(zero).square()
    ? 3 is its square
    gathers
    + torch.cat([wire.all_gather(unit.gradient) for unit in zero.order]).norm()
    ? 3 `clip` gathers gradients, where
    sums gradients
    + norm(zero)
    + wire.all_reduce(torch.cat([unit.gradient for unit in zero.order]))
    ? 3 `clip` sends more than
    reduces again
    - zero.reduce()
    + for unit in zero.units.values():
    +     unit.reduce()
    ? 4 more reduce-scatter calls
    only looks
    - unit.reduced().mul_((limit / (found + 1e-6)).clamp(max=1.0))
    + pass
    ? 3 is not clipped
    lengthens
    + unit.reduced().mul_(limit / (found + 1e-6))
    ? 3 limit 5,.*lengthened to the limit
    norm 0
    + unit.reduced().mul_(found.clamp(max=limit) / found)
    ? 3 changes a gradient of zeros
"""
WRONG = [
    *versions(Unit, lambda unit: [unit, Zero, clip], _UNITS),
    *versions(Zero, lambda zero: [Unit, zero, clip], _ZEROS),
    *versions(clip, lambda clipped: [Unit, Zero, clipped], _CLIPS),
]
