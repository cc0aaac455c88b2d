"""FSDPs that the check must refuse, as patches of the course's own, and other right ones."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.scratch import wire
from course_lib.scratch.fsdp import FSDP, FSDPUnit
from tests.checking.builds.patches import patched, versions


class Flat:
    """Right: one flat tensor, in another form than the course's."""

    def __init__(self, parameters, device, group=None, dtype=torch.float32):
        self.group, self.rank = group, dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self.shapes = {name: p.shape for name, p in parameters.items()}
        flat = torch.cat([p.detach().flatten() for p in parameters.values()])
        self.size = len(flat) + -len(flat) % self.ranks
        padded = nn.functional.pad(flat, (0, self.size - len(flat)))
        own = padded.view(self.ranks, -1)[self.rank].clone()
        self.shard = nn.Parameter(own.to(device))
        self.whole = torch.empty(self.size, dtype=dtype, device=device)
        self.whole.untyped_storage().resize_(0)
        self.gradient = self.gathering = self.reduction = None

    def views(self, whole):
        found, start = {}, 0
        for name, shape in self.shapes.items():
            found[name] = whole[start : start + shape.numel()].view(shape)
            start += shape.numel()
        return found

    def start_gather(self):
        if self.whole.untyped_storage().nbytes():
            return
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        own = self.shard.detach().to(self.whole.dtype)
        self.gathering = wire.start_all_gather(self.whole, own, self.group)

    def gather(self):
        self.start_gather()
        if self.gathering is not None:
            self.gathering.wait()
        self.gathering = None

    def free(self):
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None
        self.whole.untyped_storage().resize_(0)

    def add_gradients(self, gradients):
        flat = torch.cat([g.flatten().float() for g in gradients])
        flat = nn.functional.pad(flat, (0, self.size - len(flat)))
        self.gradient = flat if self.gradient is None else self.gradient + flat

    def start_reduction(self):
        part = torch.empty_like(self.shard).detach()
        self.sent = self.gradient / self.ranks
        self.reduction = part, wire.start_reduce_scatter(part, self.sent, self.group)
        self.gradient = None

    def finish_reduction(self):
        if self.reduction is None:
            return
        part, work = self.reduction
        work.wait()
        self.shard.grad = part if self.shard.grad is None else self.shard.grad + part
        self.reduction = self.sent = None


class Lists(Flat):
    """Right: torch's own calls, a list of parts, and the mean taken at the end."""

    def start_gather(self):
        if not self.whole.untyped_storage().nbytes():
            self.whole.untyped_storage().resize_(self.whole.nbytes)
            parts = list(self.whole.chunk(self.ranks))
            own = self.shard.detach().to(self.whole.dtype)
            self.gathering = dist.all_gather(parts, own, group=self.group, async_op=True)

    def start_reduction(self):
        part = torch.empty_like(self.shard).detach()
        pieces = [piece.contiguous() for piece in self.gradient.chunk(self.ranks)]
        work = dist.reduce_scatter(part, pieces, group=self.group, async_op=True)
        self.reduction, self.gradient = (part, work), None

    def finish_reduction(self):
        if self.reduction:
            self.reduction[1].wait()
            part = self.reduction[0] / self.ranks
            if self.shard.grad is not None:
                part += self.shard.grad
            self.shard.grad, self.reduction = part, None


def _with_unit(unit):
    unit.__name__ = "FSDPUnit"
    whole = patched(FSDP)
    whole.unit = unit
    return [unit, whole]


RIGHT = [("another form", _with_unit(Flat)), ("torch's own calls", _with_unit(Lists))]
_UNITS = r"""
    a gradient before the first pass
    - self.gradient: Tensor | None = None
    + self.gradient = self.shard.detach().new_zeros(self.flat.size)
    ? 1 before the first pass `gradient` is not None
    gathers in fp32
    - self.gathering = self.flat.start_gather(self.whole)
    + self.wide = torch.empty(self.flat.size)
    + self.gathering = self.flat.start_gather(self.wide)
    - self.gathering.wait()
    + self.gathering.wait()
    + self.whole.copy_(self.wide)
    ? 1 rank 0 .*sends more bytes by all-gather.*gathered in bf16
    a gradient as the sum
    - if self.gradient is None:
    + if self.gradient is None and len(gradients) == 1:
    +     self.gradient = gradients[0].float().flatten()
    +     return
    + if self.gradient is None:
    ? 2 has changed the gradients
    the parameters as well
    - self.group = group
    + self.group, self.parameters = group, dict(parameters)
    ? 1 keeps the parameters
    shards of unequal length
    - self.shard = self.flat.shard
    + numbers = torch.cat([p.detach().flatten() for p in parameters.values()])
    + self.shard = nn.Parameter(numbers.tensor_split(self.flat.ranks)[self.flat.rank].clone())
    ? 1 rank 1 of 2, 19 numbers: the shard has shape \(9,\), expected \(10,\)
    the next rank's part
    + parts = flat_parameter.all_gather(self.flat.shard.detach(), group).chunk(self.flat.ranks)
    + self.shard = nn.Parameter(parts[(self.flat.rank + 1) % self.flat.ranks].clone())
    ? 1 the shard is the part of rank
    a view as shard
    + parts = flat_parameter.all_gather(self.flat.shard.detach(), group).chunk(self.flat.ranks)
    + self.shard = nn.Parameter(parts[self.flat.rank])
    ? 1 keeps 80 bytes alive, expected 40
    frees nothing
    - self.whole.untyped_storage().resize_(0)
    + pass
    ? 1 whole has 80 bytes, expected 0
    a new tensor when freed
    + self.whole = torch.empty(0)
    ? 1 raised RuntimeError: The size of tensor
    gathers what is there
    - storage.nbytes() == 0
    + True
    ? 1 makes more all-gather calls.*here already
    never waits
    - self.gathering.wait()
    + pass
    ? 1 nobody waits for it
    waits where it starts
    - self.gathering = self.flat.start_gather(self.whole)
    + self.gathering = self.flat.start_gather(self.whole)
    + self.gathering.wait()
    ? 1 start_gather waits for its all-gather
    gathers over all ranks
    + self.flat.group = None
    + self.gathering = self.flat.start_gather(self.whole)
    ? 1 in the group of ranks
    a whole copy
    + self.wide = torch.empty(self.flat.size)
    + self.gathering = self.flat.start_gather(self.whole)
    ? 2 bytes stay beside shards
    frees under a gather
    + from course_lib.scratch import wire
    + own = self.shard.detach().to(self.whole.dtype)
    + self.gathering = wire.start_all_gather(self.whole, own, self.group)
    - self.gather()
    + self.gathering = None
    ? 1 still filling
    views of its own
    - self.flat.views(whole)
    + self.flat.views(self.whole)
    ? 1 views of a vector
    gradients in whole's dtype
    - self.shard.detach().new_zeros(self.flat.size)
    + torch.zeros_like(self.whole)
    ? 2 bfloat16, expected fp32|differs in
    only the last micro-batch
    - if self.gradient is None:
    + if True:
    ? 2 added to another is that of the latest call alone
    changes what it is given
    - slot += gradient
    + slot += gradient
    + gradient.add_(1)
    ? 2 has changed the gradients
    keeps what it has reduced
    - self.gradient = None
    + pass
    ? 2 to one that has been reduced already
    reduces over all ranks
    - self.reduction = Reduction
    + self.flat.group = None
    + self.reduction = Reduction
    ? 2 in the group of ranks
    waits for its reduction
    - self.gradient = None
    + self.gradient = self.reduction.work.wait() and None
    ? 2 start_reduction waits
    the sum
    - self.reduction.finish()
    + self.reduction.finish()
    + self.shard.grad *= self.flat.ranks
    ? 2 is 3 times what is expected: the sum over ranks
    overwrites
    + self.shard.grad = None
    + self.reduction.finish()
    ? 2 that of the latest reduction alone
    a part of the whole
    + self.reduction.finish()
    + self.shard.grad = self.shard.grad.repeat(2)[: len(self.shard)]
    ? 2 keeps a whole gradient in memory
"""
_FSDPS = """
    no free after forward
    - if self.frees(number):
    + if number < 0:
    ? 2 something is not freed
    gathers only in forward
    - self.units[number].gather()
    - self.fetch(number - 1)
    + self.last = number
    ? 2 when block 2 computes backward, its weights are not there
    does not finish the last reduction
    - if number == 0:
    + if False:
    ? 2 the shard of unit 0 has no gradient
    all at unit 0
    - for unit in self.units:  # one reduction at a time
    -     unit.finish_reduction()
    + pass
    - self.units[0].finish_reduction()
    + for unit in self.units:
    +     unit.finish_reduction()
    ? 2 4 reductions are under way
    finishes at once
    - self.units[number].start_reduction()
    + self.units[number].start_reduction()
    + self.units[number].finish_reduction()
    ? 2 has been waited for already
    unit -1
    - 0 <= number < len(self.units)
    + number < len(self.units)
    ? 3 none has this number, -1
    fetches and waits
    - self.units[number].start_gather()
    + self.units[number].gather()
    ? 3 has been waited for already
    frees whole blocks
    - if self.frees(number):
    + if number:
    ? 4 more all-gather calls than expected: reshard = False
    no prefetch in backward
    - self.fetch(number - 1)
    ? 3 when block 2 computes backward, the gather
    fetches everything
    - if self.prefetch and 0 <= number < len(self.units):
    -     self.units[number].start_gather()
    + for unit in self.units if self.prefetch else ():
    +     unit.start_gather()
    ? 3 comes too early
    reduces every time
    - if self.sync:
    + if True:
    ? 4 with sync = False gradients are reduced all the same
"""
WRONG = [
    *versions(FSDPUnit, _with_unit, _UNITS),
    *versions(FSDP, lambda whole: [FSDPUnit, whole], _FSDPS),
]
