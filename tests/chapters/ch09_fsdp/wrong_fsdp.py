"""FSDPs that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.scratch import fsdp, wire
from tests.checking.builds.patches import patched, versions


class FSDPUnit:
    """Right, in another form than the course's."""

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


def _with_unit(unit):
    unit.__name__ = "FSDPUnit"
    whole = patched(fsdp.FSDP)
    whole.unit = unit
    return [unit, whole]


_LISTS = patched(
    FSDPUnit,
    "wire.start_all_gather(self.whole, own, self.group)",
    "dist.all_gather(list(self.whole.chunk(self.ranks)), own, self.group, async_op=True)",
    "wire.start_reduce_scatter(part, self.sent, self.group)",
    "dist.reduce_scatter(\n"
    "    part, list(self.sent.chunk(self.ranks)), group=self.group, async_op=True\n"
    ")",
)
RIGHT = [("another form", _with_unit(FSDPUnit)), ("torch's own calls", _with_unit(_LISTS))]
_UNITS = r"""
    the parameters as well
    - self.group, self.rank = group, dist.get_rank(group)
    + self.parameters = dict(parameters)
    + self.group, self.rank = group, dist.get_rank(group)
    ? 1 keeps the parameters
    shards of unequal length
    - padded.view(self.ranks, -1)[self.rank].clone()
    + flat.tensor_split(self.ranks)[self.rank].clone()
    ? 1 rank 1 of 2, 19 numbers: the shard has shape \(9,\), expected \(10,\)
    the next rank's part
    - padded.view(self.ranks, -1)[self.rank].clone()
    + padded.view(self.ranks, -1)[(self.rank + 1) % self.ranks].clone()
    ? 1 the shard is the part of rank
    a view as shard
    - padded.view(self.ranks, -1)[self.rank].clone()
    + padded.view(self.ranks, -1)[self.rank]
    ? 1 keeps 80 bytes alive, expected 40
    frees nothing
    -     self.gathering.wait()
    -     self.gathering = None
    - self.whole.untyped_storage().resize_(0)
    +     self.gather()
    ? 1 after free whole has 80 bytes
    a new tensor when freed
    - if self.gathering is not None:
    -     self.gathering.wait()
    -     self.gathering = None
    - self.whole.untyped_storage().resize_(0)
    + self.whole = torch.empty(0)
    ? 1 whole has shape \(0,\), expected \(20,\)
    gathers what is there
    - if self.whole.untyped_storage().nbytes():
    -     return
    ? 1 makes more all-gather calls.*here already
    never waits
    - if self.gathering is not None:
    -     self.gathering.wait()
    - self.gathering = None
    + self.gathering = None
    ? 1 nobody waits for it
    the sum
    - self.gradient / self.ranks
    + self.gradient
    ? 2 is 3 times what is expected: the sum over ranks
    waits where it starts
    - self.gathering = wire.start_all_gather(self.whole, own, self.group)
    + wire.start_all_gather(self.whole, own, self.group).wait()
    ? 1 start_gather waits for its all-gather
    frees under a gather
    - if self.gathering is not None:
    -     self.gathering.wait()
    -     self.gathering = None
    - self.whole.untyped_storage().resize_(0)
    + self.gathering = None
    + self.whole.untyped_storage().resize_(0)
    ? 1 still filling
    views of its own
    - found, start = {}, 0
    + found, start, whole = {}, 0, self.whole
    ? 1 views of a vector
    gathers over all ranks
    - wire.start_all_gather(self.whole, own, self.group)
    + wire.start_all_gather(self.whole, own, None)
    ? 1 in the group of ranks \[0, 2\]
    a whole copy
    - own = self.shard.detach().to(self.whole.dtype)
    + self.wide = torch.empty(self.size)
    + own = self.shard.detach().to(self.whole.dtype)
    ? 2 bytes stay beside shards
    gradients in whole's dtype
    - g.flatten().float()
    + g.flatten().to(self.whole.dtype)
    ? 2 bfloat16, expected fp32|differs in
    changes what it is given
    - flat = torch.cat([g.flatten().float() for g in gradients])
    + flat = torch.cat([g.flatten().float() for g in gradients])
    + if self.gradient is not None:
    +     gradients[0].add_(1)
    ? 2 has changed the gradients
    reduces over all ranks
    - wire.start_reduce_scatter(part, self.sent, self.group)
    + wire.start_reduce_scatter(part, self.sent, None)
    ? 2 in the group of ranks
    waits for its reduction
    - self.gradient = None
    + self.gradient = self.reduction[1].wait() and None
    ? 2 start_reduction waits
    a part of the whole
    - part = torch.empty_like(self.shard).detach()
    - self.sent = self.gradient / self.ranks
    - self.reduction = part, wire.start_reduce_scatter(part, self.sent, self.group)
    + self.sent = self.gradient / self.ranks
    + part = self.sent.view(self.ranks, -1)[self.rank]
    + self.reduction = part, wire.start_reduce_scatter(part, self.sent.clone(), self.group)
    ? 2 keeps a whole gradient in memory
    overwrites
    - self.shard.grad = part if self.shard.grad is None else self.shard.grad + part
    + self.shard.grad = part
    ? 2 that of the latest reduction alone
    keeps what it has reduced
    - self.gradient = None
    ? 2 to one that has been reduced already
    only the last micro-batch
    - self.gradient = flat if self.gradient is None else self.gradient + flat
    + self.gradient = flat
    ? 2 added to another is that of the latest call alone
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
    *versions(fsdp.FSDP, lambda whole: [fsdp.FSDPUnit, whole], _FSDPS),
]
