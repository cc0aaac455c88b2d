"""Dispatchers that the check must refuse, as patches of the course's own; another right one."""

from course_lib.scratch.experts import AllToAll, Dispatcher
from tests.checking.builds.patches import patched, versions

_IN_PLACES = patched(
    Dispatcher,
    "torch.bincount(chosen.flatten(), minlength=experts)[None]",
    "torch.bincount(chosen.flatten(), minlength=experts)[None].int()",
    "rows = rows * weights.flatten()[self.order].unsqueeze(1)",
    "back = rows.new_zeros(weights.numel(), rows.shape[1]).index_copy(0, self.order, rows)",
    "out = rows.new_zeros(len(weights), rows.shape[1])",
    "back = back.view(*weights.shape, rows.shape[1]) * weights[..., None]",
    "out.index_add(0, self.order // weights.shape[1], rows)",
    "back.sum(1)",
)
RIGHT = [("choices, then their sum; counts of 32 bits", [AllToAll, _IN_PLACES])]
_EXCHANGES = """
    does nothing
    - exchange(rows, sent, received, group)
    + rows.clone()
    ? 1 what arrives has shape
    sizes exchanged
    + exchange(rows, received, sent, group)
    ? 1 raised RuntimeError.*of your code
    nobody to send to
    + exchange(rows, sent, received, group) if len(rows) else rows.new_empty(sum(received), 2)
    ? 1 rank 1(, which had| has) returned
    the world's all-to-all
    - return exchange(rows, sent, received, group)
    + none = [0] * (dist.get_world_size() - len(sent))
    + return exchange(rows, [*sent, *none], [*received, *none], None)
    ? 1 (another number of bytes|among 3 ranks)
    room of fp32
    + return exchange(rows.float(), sent, received, group)
    ? 1 what arrives is of torch.float32, and was given torch.bfloat16
    changes rows
    + room = exchange(rows, sent, received, group)
    + rows.data.zero_()
    + return room
    ? 1 AllToAll changes its rows
    gradient not sent
    - exchange(gradient.contiguous(), *ctx.back)
    + gradient
    ? 4 invalid gradient
    no gradient
    + ctx.back and None
    ? 4 the gradient of the rows is None
    sizes of the latest
    + exchange(gradient.contiguous(), *AllToAll.back)
    - ctx.back =
    + AllToAll.back =
    ? 4 .
"""
_DISPATCHES = """
    counts not exchanged
    - wire.all_gather(own, self.group)
    + own.expand(self.ranks, -1).clone()
    ? 2 the table of counts is its own counts, for every rank
    counts of the world
    + wire.all_gather(own)
    ? 2 (a group of .: the table|number of bytes)
    counts as floats
    + wire.all_gather(own.float(), self.group)
    ? 2 is of torch.float32, and sizes are whole numbers
    counts of 16 bits
    + wire.all_gather(own.short(), self.group)
    ? 2 Invalid scalar type
    counts of 8 bits
    + wire.all_gather(own.to(torch.uint8), self.group)
    ? 2 40,000 tokens: the table of counts
    in the order of the tokens
    - by_expert(chosen, kept[self.rank])
    + by_expert(chosen, kept[self.rank]).sort().values
    ? 2 cut from rows that are not sorted by expert
    no limit
    + chosen.flatten().argsort(stable=True)
    ? 2 (Split sizes|another number of bytes)
    order of the first batch
    + getattr(self, "order", by_expert(chosen, kept[self.rank]))
    ? 2 .
    two experts on each
    - kept.view(self.ranks, self.ranks, -1)
    + kept.reshape(self.ranks, -1, 2)
    ? 2 (raised RuntimeError|another number of bytes)
    token c // 2
    - self.order // chosen.shape[1]
    + self.order // 2
    ? 2 (raised IndexError|top_k 1, .*what arrives)
    changes kept
    - rows = tokens
    + kept -= kept
    + rows = tokens
    ? 3 Dispatcher changes kept
    not put back
    - rows = rows * weights
    + self.order = self.order.sort().values
    + rows = rows * weights
    ? 3 the results in the order in which they come back
    changes weights
    + weights.data /= 2
    + rows = 2 * rows * weights
    ? 3 Dispatcher changes weights
    weights add up to 1
    + rows = rows * (weights / weights.sum(1, keepdim=True))
    ? 3 the result
    no gradient of weights
    + rows = rows * weights.detach()
    ? 4 the gradient of the weights is None
    sums of fp32
    + rows = rows.float() * weights
    ? 3 bfloat16.*the result is of torch.float32
    weights forgotten
    - weights.flatten()[self.order].unsqueeze(1)
    + 1
    ? 3 the plain sum of the experts' results
    weights twice
    + weights.flatten()[self.order].unsqueeze(1) ** 2
    ? 3 weighted twice
    weighted by place
    + weights.flatten()[: len(rows)].unsqueeze(1)
    ? 3 each result with the weight of another choice
    travels once more
    - rows = self.all_to_all(results, self.received, self.sent)
    + rows = self.all_to_all(results, self.received, self.sent)
    + rows = self.all_to_all(rows, self.sent, self.received)
    + rows = self.all_to_all(rows, self.received, self.sent)
    ? 3 more all-to-all calls
"""
WRONG = versions(AllToAll, lambda exchange: [exchange, Dispatcher], _EXCHANGES)
WRONG += versions(Dispatcher, lambda dispatcher: [AllToAll, dispatcher], _DISPATCHES)
