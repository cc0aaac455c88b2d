"""ZeRO as the check must refuse it: (what was thought, answer, words of the refusal)."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.scratch import wire
from course_lib.scratch.replicas.ddp import after_backward
from course_lib.scratch.zero.flat import flatten, units_of, views


class Unit:
    """Right: it adds the gradients of micro-batches up in place, and gathers by messages' views."""

    def __init__(self, parameters, ranks, place=None):
        self.parameters, self.ranks = list(parameters), ranks
        self.whole = self.lay(self.parameters)
        for parameter, view in views(self.whole, self.parameters):
            parameter.data = view
        self.own = self.part()
        self.master = nn.Parameter(self.own.float())
        self.gradient = None

    def lay(self, tensors):
        return flatten(tensors, self.ranks)

    def part(self):
        size, rank = len(self.whole) // self.ranks, dist.get_rank()
        return self.whole[rank * size : (rank + 1) * size]

    def reduce(self):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        part = self.scatter(self.lay(gradients))
        if self.gradient is None:
            self.gradient = torch.zeros_like(part)
        self.gradient += part
        for parameter in self.parameters:
            parameter.grad = None

    def scatter(self, vector):
        return wire.reduce_scatter(vector)

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
        self.optimizer = optimizer(self.owned())
        self.next, self.stage = None, stage
        if stage == 2:
            for unit in self.order:
                for parameter in unit.parameters:
                    parameter.register_post_accumulate_grad_hook(self._arrived)

    def owned(self):
        return [unit.master for unit in self.units.values()]

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


# -- wrong units -----------------------------------------------------------------------------------


class PartIsACopy(Unit):
    def part(self):
        return super().part().clone()


class SkipsNone(Unit):
    """A unit without any gradient on this rank has nothing to send."""

    def reduce(self):
        if any(p.grad is not None for p in self.parameters):
            super().reduce()


class Fp32Only(Unit):
    """Adds into a buffer that was made for fp32."""

    def scatter(self, vector):
        part = torch.empty(len(vector) // self.ranks)
        wire.start_reduce_scatter(part, vector).wait()
        return part


class NotPadded(Unit):
    def lay(self, tensors):
        return torch.cat([tensor.detach().flatten() for tensor in tensors])

    def part(self):
        return self.whole.tensor_split(self.ranks)[dist.get_rank()]


class OfTheNext(Unit):
    """Keeps a part of the gradient, but not that of its weights."""

    def scatter(self, vector):
        rank = (dist.get_rank() + 1) % self.ranks
        return wire.all_reduce(vector).chunk(self.ranks)[rank].clone()


class TheMean(Unit):
    def scatter(self, vector):
        return wire.reduce_scatter(vector) / self.ranks


class ItsOwn(Unit):
    def scatter(self, vector):
        return vector.chunk(self.ranks)[dist.get_rank()].clone()


class AllReduced(Unit):
    """Right numbers, but everybody gets the whole sum first."""

    def scatter(self, vector):
        return wire.all_reduce(vector).chunk(self.ranks)[dist.get_rank()].clone()


class OnlyTheLatest(Unit):
    def reduce(self):
        self.gradient = None
        super().reduce()


class KeepsTheWhole(Unit):
    def reduce(self):
        kept = [p.grad for p in self.parameters]
        super().reduce()
        for parameter, gradient in zip(self.parameters, kept, strict=True):
            parameter.grad = gradient


class NotGathered(Unit):
    def publish(self):
        with torch.no_grad():
            self.own.copy_(self.master)


class NotCopied(Unit):
    """In fp32 the master is the part itself; in bf16 it is not."""

    def publish(self):
        self.whole.copy_(wire.all_gather(self.own.clone()))


# -- wrong trainers --------------------------------------------------------------------------------


class WholesAsWell(Zero):
    """Parameters that never have a gradient, and so no states."""

    def owned(self):
        return [*super().owned(), *(p for unit in self.units.values() for p in unit.parameters)]


class WholeStates(Zero):
    """Every rank has an optimizer for all weights."""

    def owned(self):
        return [nn.Parameter(unit.whole) for unit in self.units.values()]

    def step(self):
        self.reduce()
        for unit, whole in zip(
            self.units.values(), self.optimizer.param_groups[0]["params"], strict=True
        ):
            rank, size = dist.get_rank(), len(unit.own)
            whole.grad = torch.zeros_like(whole)
            whole.grad[rank * size : (rank + 1) * size] = unit.gradient
        self.optimizer.step()
        for unit in self.units.values():
            unit.gradient = None
            unit.publish()


class ZerosStay(Zero):
    """Zeros in place of None."""

    def step(self):
        super().step()
        for unit in self.units.values():
            unit.gradient = torch.zeros_like(unit.own)


class MasterKeeps(Zero):
    def step(self):
        self.reduce()
        for unit in self.units.values():
            unit.master.grad = unit.gradient.float()
        self.optimizer.step()
        for unit in self.units.values():
            unit.gradient = None
            unit.publish()


class ReducesEachTime(Zero):
    """A second `reduce` in one update sends again."""

    def reduce(self):
        for unit in self.units.values() if self.stage == 1 else ():
            unit.reduce()


class AlwaysStageTwo(Zero):
    def __init__(self, model, layers, optimizer, stage=1):
        super().__init__(model, layers, optimizer, stage=2)


class SkipsWholeUnits(Zero):
    """Units that this rank leaves out are not reduced."""

    def _finish(self):
        for unit in self.order[self.next :]:
            if any(p.grad is not None for p in unit.parameters):
                unit.reduce()
        self.next = None

    def reduce(self):
        for unit in self.units.values():
            if unit.gradient is None:
                unit.reduce()


class OneBehind(Zero):
    """A unit is reduced when the next one is complete as well."""

    def _arrived(self, _):
        if self.next is None:
            self.next = 0
            after_backward(self._finish)
        while self.next + 1 < len(self.order):
            two = self.order[self.next : self.next + 2]
            if any(p.grad is None for unit in two for p in unit.parameters):
                return
            self.order[self.next].reduce()
            self.next += 1


class Unpublished(Zero):
    def step(self):
        self.reduce()
        for unit in self.units.values():
            unit.master.grad = unit.gradient
        self.optimizer.step()
        for unit in self.units.values():
            unit.gradient = None


class NeverDropped(Zero):
    """The gradient of the first update stays."""

    def reduce(self):
        for unit in self.units.values():
            unit.reduce()

    def step(self):
        self.reduce()
        for unit in self.units.values():
            unit.master.grad = unit.gradient
        self.optimizer.step()
        for unit in self.units.values():
            unit.publish()


class MeanInStep(Zero):
    def step(self):
        self.reduce()
        for unit in self.units.values():
            unit.gradient /= self.ranks
        super().step()


class NoGradient(Zero):
    """The optimizer is never told."""

    def step(self):
        self.reduce()
        self.optimizer.step()
        for unit in self.units.values():
            unit.gradient = None
            unit.publish()


class LeavesOut(Unit):
    """The zeros of parameters without a gradient are laid behind all others."""

    def reduce(self):
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
                parameter.grad.zeros = True
        grads = [p.grad for p in self.parameters]
        grads.sort(key=lambda grad: hasattr(grad, "zeros"))
        piece = wire.reduce_scatter(flatten(grads, self.ranks))
        self.gradient = piece if self.gradient is None else self.gradient + piece
        for parameter in self.parameters:
            parameter.grad = None


def norms_of_ranks(zero, limit):
    """One number from each rank, gathered."""
    zero.reduce()
    own = torch.cat([unit.gradient for unit in zero.order]).norm()
    norm = wire.all_gather(own.reshape(1)).norm()
    for unit in zero.order:
        unit.gradient *= (limit / norm).clamp(max=1)
    return norm


def divides_by_zero(zero, limit):
    norm = norms_of_ranks(zero, float("inf"))
    for unit in zero.order:
        unit.gradient *= norm.clamp(max=limit) / norm
    return norm


def own_norm(zero, limit):
    zero.reduce()
    norm = torch.cat([unit.gradient for unit in zero.units.values()]).norm()
    for unit in zero.units.values():
        unit.gradient *= (limit / norm).clamp(max=1.0)
    return norm


def gathers(zero, limit):
    zero.reduce()
    whole = torch.cat([wire.all_gather(unit.gradient) for unit in zero.units.values()])
    norm = whole.norm()
    for unit in zero.units.values():
        unit.gradient *= (limit / norm).clamp(max=1.0)
    return norm


def each_unit(zero, limit):
    """Each unit is clipped by itself."""
    zero.reduce()
    squares = []
    for unit in zero.units.values():
        squares.append(wire.all_reduce(unit.gradient.square().sum()))
        unit.gradient *= (limit / squares[-1].sqrt()).clamp(max=1.0)
    return torch.stack(squares).sum().sqrt()


def no_root(zero, limit):
    zero.reduce()
    square = sum(unit.gradient.square().sum() for unit in zero.units.values())
    norm = wire.all_reduce(square)
    for unit in zero.units.values():
        unit.gradient *= (limit / norm).clamp(max=1.0)
    return norm


def whole_gradients(zero, limit):
    """Sums vectors that are zero but for the own part."""
    zero.reduce()
    squares = []
    for unit in zero.units.values():
        vector = torch.zeros_like(unit.whole)
        size, rank = len(unit.own), dist.get_rank()
        vector[rank * size : (rank + 1) * size] = unit.gradient
        squares.append(wire.all_reduce(vector).square().sum())
    norm = torch.stack(squares).sum().sqrt()
    for unit in zero.units.values():
        unit.gradient *= (limit / (norm + 1e-6)).clamp(max=1.0)
    return norm


def clips_by_half(zero, limit):
    norm = total_clip(zero, limit)
    for unit in zero.units.values() if norm > limit else ():
        unit.gradient *= 0.5
    return norm


def reduces_again(zero, limit):
    for unit in zero.units.values() if zero.stage == 2 else ():
        unit.reduce()
    return total_clip(zero, limit)


def only_looks(zero, limit):
    return total_clip(zero, 1e9)


def lengthens(zero, limit):
    """A gradient within the limit is stretched to it."""
    zero.reduce()
    square = sum(unit.gradient.square().sum() for unit in zero.units.values())
    norm = wire.all_reduce(square).sqrt()
    for unit in zero.units.values():
        unit.gradient *= limit / norm
    return norm


class StageOne(Zero):
    """Stage 2 by name: everything is reduced in `step`."""

    def _arrived(self, _):
        self.next = 0

    def reduce(self):
        for unit in self.units.values():
            if unit.gradient is None:
                unit.reduce()


class AfterBackward(Zero):
    """Reduces at the end of the backward pass: all whole gradients are there at once."""

    def _arrived(self, _):
        if self.next is None:
            self.next = 0
            after_backward(self._finish)


class WhatIsComplete(Zero):
    """Each rank reduces whatever is complete, and the rest in `step`."""

    def _arrived(self, _):
        for unit in self.order:
            if all(p.grad is not None for p in unit.parameters):
                unit.reduce()

    def reduce(self):
        for unit in self.order:
            if unit.gradient is None:
                unit.reduce()


class OneByOne(Zero):
    """Each gradient is reduced as it comes, with zeros for all the others of its unit."""

    def _arrived(self, parameter):
        next(u for u in self.order if any(p is parameter for p in u.parameters)).reduce()


class LastMicroBatch(Zero):
    """Each backward pass begins anew."""

    def _arrived(self, parameter):
        if self.next is None:
            for unit in self.units.values():
                unit.gradient = None
        super()._arrived(parameter)


def _answer(unit=Unit, zero=Zero, clip=total_clip):
    unit.__name__, zero.__name__, clip.__name__ = "Unit", "Zero", "clip"
    return [unit, zero, clip]


_1, _2, _3, _4 = (f"step {number} of 4.*" for number in range(1, 5))
RIGHT = [
    ("adds up in place", _answer()),
    ("gathers a norm from each rank", _answer(clip=norms_of_ranks)),
]
WRONG = [
    ("zeros behind all others", _answer(LeavesOut), _1 + "`gradient` after `reduce` number 2"),
    ("norm 0", _answer(clip=divides_by_zero), _3 + "changes a gradient of zeros"),
    (
        "parts of unequal length",
        _answer(NotPadded),
        _1 + r"rank 1.*`own` has shape \(2,\), expected \(3,\)",
    ),
    ("another part's gradient", _answer(OfTheNext), _1 + "is the part of rank 1"),
    ("the mean", _answer(TheMean), _1 + "1/3 of what is expected: the mean over ranks"),
    ("nothing is summed", _answer(ItsOwn), _1 + "what this rank itself has"),
    ("an all-reduce", _answer(AllReduced), _1 + "rank 0 makes more all-reduce calls"),
    ("the latest only", _answer(OnlyTheLatest), _1 + "number 2 is that of the latest"),
    ("gradients stay", _answer(KeepsTheWhole), _1 + "2 parameters still have a `.grad`"),
    ("nobody gathers", _answer(NotGathered), _1 + "updated in the part of rank 0 only"),
    ("the master is not copied", _answer(NotCopied), _1 + "bf16.*what it was before the update"),
    ("a part is a copy", _answer(PartIsACopy), _1 + "`part` gives a copy"),
    ("skips None", _answer(SkipsNone), _1 + "(received another number|nothing moves|on 3 ranks)"),
    ("a buffer in fp32", _answer(Fp32Only), _1 + "raised RuntimeError"),
    (
        "zeros stay",
        _answer(zero=ZerosStay),
        _2 + "after update 2 differs|`gradient` of a unit is not None",
    ),
    ("the master keeps", _answer(zero=MasterKeeps), _2 + "`.grad` of a unit's `master`"),
    ("reduces each time", _answer(zero=ReducesEachTime), _2 + "more reduce-scatter calls"),
    ("stage 2 in any case", _answer(zero=AlwaysStageTwo), _2 + "more reduce-scatter calls"),
    (
        "skips whole units",
        _answer(zero=SkipsWholeUnits),
        _4 + "nothing moves|of 3 units have been reduced|bytes",
    ),
    ("one behind", _answer(zero=OneBehind), _4 + "2 units are complete, and 1 of them"),
    ("whole states", _answer(zero=WholeStates), _2 + "the optimizer keeps"),
    ("whole parameters too", _answer(zero=WholesAsWell), _2 + "the optimizer is given"),
    ("not published", _answer(zero=Unpublished), _2 + "have not reached all ranks"),
    ("never dropped", _answer(zero=NeverDropped), _2 + "gradients of earlier updates"),
    ("the mean in step", _answer(zero=MeanInStep), _2 + "what the mean of the ranks' gradients"),
    ("the optimizer is not told", _answer(zero=NoGradient), _2 + "what it was before the update"),
    ("own norm", _answer(clip=own_norm), _3 + "that of this rank's part alone"),
    ("sums gradients", _answer(clip=whole_gradients), _3 + "`clip` sends more than"),
    ("by half", _answer(clip=clips_by_half), _3 + "is 0.5 times what is expected"),
    ("reduces again", _answer(clip=reduces_again), _4 + "more reduce-scatter calls"),
    ("gathers", _answer(clip=gathers), _3 + "`clip` gathers gradients, where"),
    ("unit by unit", _answer(clip=each_unit), _3 + "limit 0.05.*differs in"),
    ("no root", _answer(clip=no_root), _3 + "is its square"),
    ("only looks", _answer(clip=only_looks), _3 + "is not clipped"),
    ("lengthens", _answer(clip=lengthens), _3 + r"limit 5,.*lengthened to the limit"),
    ("stage 1 by name", _answer(zero=StageOne), _4 + "0 of 3 units have been reduced"),
    ("after backward", _answer(zero=AfterBackward), _4 + "no unit is reduced before the last"),
    (
        "what is complete",
        _answer(zero=WhatIsComplete),
        _4 + "received another number of bytes|nothing moves",
    ),
    ("one by one", _answer(zero=OneByOne), _4 + "received another number of bytes|nothing moves"),
    ("the last micro-batch", _answer(zero=LastMicroBatch), _4 + "what the last micro-batch alone"),
]
