"""Ways into and out of a pair that the check must refuse: (thought, answer, words of refusal)."""

import torch
import torch.distributed as dist

from course_lib.scratch import wire
from course_lib.scratch.tensor import sequence
from tests.checking.builds.wrong_tensor import function


def _gathered(x, group):
    return wire.all_gather(x.transpose(0, 1), group).transpose(0, 1).contiguous()


def _scattered(x, group):
    return wire.reduce_scatter(x.transpose(0, 1), group).transpose(0, 1).contiguous()


def _own(x, group):
    """Forgets that the others' gradients count as well."""
    return x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()


def _along_batch(x, group):
    return wire.all_gather(x, group)


def _scattered_as_it_lies(x, group):
    """Cuts what lies in memory, and calls the piece tokens."""
    ranks = dist.get_world_size(group)
    piece = wire.reduce_scatter(x.flatten(), group)
    return piece.view(x.shape[0], x.shape[1] // ranks, x.shape[2])


def _viewed(x, group):
    """Joined along the batch and given the right shape."""
    whole = wire.all_gather(x, group)
    return whole.view(x.shape[0], -1, x.shape[2])


def _mean(x, group):
    return _scattered(x, group) / dist.get_world_size(group)


def _by_all_reduce(x, group):
    """The same numbers for twice the bytes."""
    return _own(wire.all_reduce(x, group), group)


def _in_place(x, group):
    dist.all_reduce(x.detach(), group=group)
    return _own(x, group)


def _padded(x, group):
    """Only its own tokens get a gradient."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    whole = torch.zeros(x.shape[0], x.shape[1] * ranks, x.shape[2])
    whole[:, rank * x.shape[1] : (rank + 1) * x.shape[1]] = x
    return whole


def _only_rank_0(x, group):
    return _gathered(x, group) if dist.get_rank() == 0 else _padded(x, group)


def _of_the_world(x, group):
    """The group is forgotten."""
    return _scattered(x, None)


def _gathered_from_all(x, group):
    return _gathered(x, None)


def _in_fp32(x, group):
    return _gathered(x.float(), group)


def _sums_in_fp32(x, group):
    return _scattered(x.float(), group)


def _by_sample(x, group):
    """One message for each sample."""
    return torch.stack([wire.all_gather(sample, group) for sample in x])


def _doubled_in_place(x, group):
    whole = _gathered(x, group)
    x.detach().mul_(2)
    return whole


def _scatters_in_place(x, group):
    share = _scattered(x, group)
    x.detach().zero_()
    return share


def _sum_of_all(x, group):
    """Gathers the wholes of all ranks and adds them up here."""
    ranks = dist.get_world_size(group)
    return _own(wire.all_gather(x[None], group).sum(0), group) if ranks > 1 else x


def _rank_1_is_done(x, group):
    """Rank 1 has what it needs, it thinks."""
    return _own(x, group) if dist.get_rank() == 1 else _scattered(x, group)


class LatestGroup(torch.autograd.Function):
    """Remembers one group for all calls."""

    @staticmethod
    def forward(ctx, x, group):
        LatestGroup.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _scattered(gradient, LatestGroup.group), None


LatestGroup.__name__ = "Gather"


def _with(into=(_gathered, _scattered), out=(_scattered, _gathered)):
    return [function("Gather", *into), function("SumScatter", *out)]


_FIRST, _SECOND = "step 1 of 3.*", "step 2 of 3.*"
RIGHT = [
    ("by movedim", [function("Gather", lambda x, group: wire.all_gather(
        x.movedim(1, 0), group).movedim(0, 1), _scattered), sequence.SumScatter]),
]  # fmt: skip
WRONG = [
    ("along the batch", _with(into=(_along_batch, _scattered)), _FIRST + "along the batch, not"),
    (
        "reshaped after joining",
        _with(into=(_viewed, _scattered)),
        _FIRST + "shares one after another, whose samples",
    ),
    (
        "cuts the gradient only",
        _with(into=(_gathered, _own)),
        _FIRST + "backward: the share is this rank's own part, to which nothing was added",
    ),
    ("the mean", _with(into=(_gathered, _mean)), _FIRST + "1/2 of what is expected: the mean"),
    (
        "cuts what lies in memory",
        _with(out=(_scattered_as_it_lies, _gathered)),
        _SECOND + "a part of the batch, not of the sequence",
    ),
    (
        "an all-reduce, then cut",
        _with(out=(_by_all_reduce, _gathered)),
        _SECOND + "more all-reduce calls",
    ),
    ("adds up in place", _with(out=(_in_place, _gathered)), _SECOND + "changes its argument"),
    (
        "a gradient for its own tokens only",
        _with(out=(_scattered, _padded)),
        _SECOND + "backward: the whole differs",
    ),
    (
        "rank 0 alone gathers",
        _with(into=(_only_rank_0, _scattered)),
        _FIRST + "(nothing moves.*rank 0 is in allgather|rank . lost its conn).*of your code",
    ),
    (
        "the group of the latest call",
        [LatestGroup, sequence.SumScatter],
        _FIRST + "(backward: the share|another number of bytes|invalid gradient|nothing moves)",
    ),
    (
        "gathers from all",
        _with(into=(_gathered_from_all, _scattered)),
        _FIRST + "(group of|number of bytes)",
    ),
    (
        "scatters over all",
        _with(into=(_gathered, _of_the_world)),
        _FIRST + "(group of ranks|invalid gradient)",
    ),
    ("in fp32", _with(into=(_in_fp32, _scattered)), _FIRST + "is of torch.float32, and was given"),
    ("sums in fp32", _with(out=(_sums_in_fp32, _gathered)), _SECOND + "is of torch.float32"),
    ("by sample", _with(into=(_by_sample, _scattered)), _FIRST + "more all-gather calls"),
    (
        "its argument doubled",
        _with(into=(_doubled_in_place, _scattered)),
        _FIRST + "changes its argument",
    ),
    (
        "the gradient put to 0",
        _with(into=(_gathered, _scatters_in_place)),
        _FIRST + "changes the gradient that it is given",
    ),
    ("sums what it gathers", _with(out=(_sum_of_all, _gathered)), _SECOND + "all-gather"),
    (
        "rank 1 is done",
        _with(into=(_gathered, _rank_1_is_done)),
        _FIRST + "nothing moves.*rank 0 is in .*at line.*rank 1 has done a backward pass",
    ),
]
