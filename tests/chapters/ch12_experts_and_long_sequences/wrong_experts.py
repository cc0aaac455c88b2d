"""Dispatchers that the check must refuse, and one more that is right."""

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.scratch import wire
from course_lib.scratch.experts import by_expert


def _exchange(rows, sent, received, group):
    room = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(room, rows.contiguous(), received, sent, group=group)
    return room


def _parts(fault=""):
    """An all-to-all and a Dispatcher in which one thing goes wrong, or nothing."""

    class AllToAll(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, sent, received, group):
            ctx.sizes = AllToAll.sizes = sent, received, group
            if fault == "the world's all-to-all":
                return _exchange(rows, _filled(sent), _filled(received), None)
            if fault == "room of fp32":
                return _exchange(rows.float(), sent, received, group)
            if fault == "nobody to send to" and not len(rows):
                return rows.new_empty(sum(received), *rows.shape[1:])
            if fault == "changes rows":
                room = _exchange(rows, sent, received, group)
                rows.data.zero_()
                return room
            if fault == "sizes exchanged":
                return _exchange(rows, received, sent, group)
            if fault == "room for its own":
                return _exchange(rows, sent, sent, group)
            if fault == "does nothing":
                return rows.clone()
            return _exchange(rows, sent, received, group)

        @staticmethod
        def backward(ctx, gradient):
            sent, received, group = ctx.sizes
            if fault == "sizes of the latest":
                sent, received, group = AllToAll.sizes
            if fault == "gradient not sent":
                return gradient, None, None, None
            if fault == "gradient sent on":
                return _exchange(gradient, sent, received, group), None, None, None
            if fault == "no gradient":
                return None, None, None, None
            return _exchange(gradient, received, sent, group), None, None, None

    class Dispatcher:
        def __init__(self, group):
            self.group, self.rank, self.ranks = group, dist.get_rank(group), group.size()

        def count(self, chosen, experts):
            own = torch.bincount(chosen.flatten(), minlength=experts)
            if fault == "counts of the world":
                return wire.all_gather(own[None])
            if fault == "counts as floats":
                own = own.float()
            if fault == "counts of 16 bits":
                own = own.short()
            if fault == "counts of 32 bits":
                own = own.int()
            if fault == "each choice counts for two":
                own *= chosen.shape[1] // 2
            if fault == "counts not exchanged":
                return own.expand(self.ranks, -1).clone()
            everyone = [torch.empty_like(own) for _ in range(self.ranks)]
            dist.all_gather(everyone, own, group=self.group)
            return torch.stack(everyone)

        def dispatch(self, tokens: Tensor, chosen, kept):
            self.order = by_expert(chosen, kept[self.rank])
            if fault == "in the order of the tokens":
                self.order = self.order.sort().values
            if fault == "order of the first batch":
                self.order = self.first = getattr(self, "first", self.order)
            by_owner = kept.view(self.ranks, self.ranks, -1).sum(2)
            if fault == "two experts on each":
                by_owner = kept.reshape(self.ranks, -1, 2).sum(2)
            if fault == "changes kept":
                kept -= kept
            self.sent = by_owner[self.rank].tolist()
            self.received = by_owner[:, self.rank].tolist()
            if fault == "equal pieces":
                self.sent = [len(self.order) // self.ranks] * self.ranks
                self.received = self.sent
            if fault == "no limit":
                self.order = chosen.flatten().argsort(stable=True)
            if fault == "changes tokens":
                with torch.no_grad():
                    tokens += 1
                    tokens -= 2
            if fault == "token c // 2":
                return self.travel(tokens[self.order // 2], self.sent, self.received)
            return self.travel(tokens[self.order // chosen.shape[1]], self.sent, self.received)

        def combine(self, results, weights):
            rows = self.travel(results, self.received, self.sent)
            order = self.order
            if fault == "not put back":
                order = order.sort().values
            if fault == "changes weights":
                with torch.no_grad():
                    weights /= 2
                    rows = 2 * rows
            if fault == "changes results":
                results.data.zero_()
            back = rows.new_zeros(weights.numel(), rows.shape[1])
            if fault == "sums of fp32":
                back, rows = back.float(), rows.float()
            if fault == "weights add up to 1":
                weights = weights / weights.sum(1, keepdim=True)
            if fault == "no gradient of weights":
                weights = weights.detach()
            if fault == "travels once more":
                rows = self.travel(
                    self.travel(rows, self.sent, self.received), self.received, self.sent
                )
            if fault == "weighted by place":
                rows = rows * weights.flatten()[: len(rows), None]
                weights = torch.ones_like(weights)
            back = back.index_copy(0, order, rows).view(*weights.shape, rows.shape[1])
            if fault != "weights forgotten":
                back = back * weights[..., None]
            if fault == "weights twice":
                back = back * weights[..., None]
            return back.sum(1)

        def travel(self, *args):
            return AllToAll.apply(*args, self.group)

    return [AllToAll, Dispatcher]


def _filled(sizes):
    """Sizes for all ranks, from those of a group."""
    return [*sizes, *[0] * (dist.get_world_size() - len(sizes))]


RIGHT = [
    ("choices, then their sum", _parts()),
    ("counts of 32 bits", _parts("counts of 32 bits")),
]
AS_MINE = "\nAllToAll, Dispatcher = _parts()\n"  # at the end of a copy of this file, as if kept

_ONE, _TWO, _THREE, _FOUR = (f"step {number} of 4.*" for number in (1, 2, 3, 4))
WRONG = [
    (thought, _parts(thought), words)
    for thought, words in [
        ("does nothing", _ONE + "what arrives has shape"),
        ("sizes exchanged", _ONE + "raised RuntimeError.*of your code"),
        ("room for its own", _ONE + "(raised RuntimeError|another number of bytes)"),
        ("nobody to send to", _ONE + "rank 1(, which had| has) returned"),
        ("counts not exchanged", _TWO + "the table of counts is its own counts, for every rank"),
        ("in the order of the tokens", _TWO + "cut from rows that are not sorted by expert"),
        # Whichever rank is first: one whose rows do not fit, or one that gets too few.
        ("equal pieces", _TWO + "(raised RuntimeError: Split sizes|another number of bytes)"),
        ("no limit", _TWO + "(Split sizes|another number of bytes)"),
        ("not put back", _THREE + "the results in the order in which they come back"),
        ("weights forgotten", _THREE + "the plain sum of the experts' results"),
        ("weights twice", _THREE + "weighted twice"),
        ("weighted by place", _THREE + "each result with the weight of another choice"),
        ("gradient not sent", _FOUR + "invalid gradient"),
        ("gradient sent on", _FOUR + "raised RuntimeError.*of your code"),
        ("no gradient", _FOUR + "the gradient of the rows is None"),
        ("the world's all-to-all", _ONE + "(another number of bytes|among 3 ranks)"),
        ("room of fp32", _ONE + "what arrives is of torch.float32, and was given torch.bfloat16"),
        ("counts as floats", _TWO + "is of torch.float32, and sizes are whole numbers"),
        ("counts of 16 bits", _TWO + "(Invalid scalar type|40,000 tokens: the table)"),
        ("each choice counts for two", _TWO + "top_k 1, .*the table of counts"),
        ("two experts on each", _TWO + "(raised RuntimeError|another number of bytes)"),
        ("token c // 2", _TWO + "(raised IndexError|top_k 1, .*what arrives)"),
        ("counts of the world", _TWO + "(in a group of .: the table|number of bytes)"),
        ("changes results", _THREE + "Dispatcher changes results"),
        ("changes rows", _ONE + "AllToAll changes its rows"),
        ("changes kept", _THREE + "Dispatcher changes kept"),
        ("changes tokens", _TWO + "what arrives"),
        ("changes weights", _THREE + "Dispatcher changes weights"),
        ("sums of fp32", _THREE + "bfloat16.*the result is of torch.float32"),
        ("weights add up to 1", _THREE + "the result"),
        ("travels once more", _THREE + "more all-to-all calls"),
        ("sizes of the latest", _FOUR + "."),
        ("order of the first batch", _TWO + "."),
        ("no gradient of weights", _FOUR + "the gradient of the weights is None"),
    ]
]
