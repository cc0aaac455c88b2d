"""FSDPs that the check must refuse, as patches of the course's own, and another right one."""

from course_lib.scratch.fsdp import FSDP, FSDPUnit
from tests.checking.builds.patches import patched, versions


def _with_unit(unit):
    whole = patched(FSDP)
    whole.unit = unit
    return [unit, whole]


_LISTS = patched(
    FSDPUnit,
    "self.gathering = self.flat.start_gather(self.whole)",
    "parts = list(self.whole.chunk(self.flat.ranks))\n"
    "own = self.shard.detach().to(self.whole.dtype)\n"
    "self.gathering = dist.all_gather(parts, own, self.group, async_op=True)",
    "self.reduction = Reduction(self.flat, self.gradient)",
    "self.part = torch.empty_like(self.shard).detach()\n"
    "pieces = [piece.clone() for piece in self.gradient.chunk(self.flat.ranks)]\n"
    "self.reduction = dist.reduce_scatter(self.part, pieces, group=self.group, async_op=True)",
    "self.reduction.finish()",
    "self.reduction.wait()\n"
    "self.part /= self.flat.ranks\n"
    "self.shard.grad = self.part + (0 if self.shard.grad is None else self.shard.grad)\n"
    "self.part = None",
)
RIGHT = [("torch's own calls", _with_unit(_LISTS))]
_UNITS = r"""
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
    + self.gathering = wire.start_all_gather(self.whole, self.shard.detach(), self.group)
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
