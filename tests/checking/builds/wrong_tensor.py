"""Cut layers that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.nn.functional import linear

from course_lib.scratch import wire
from course_lib.scratch.tensor import region


def function(name, forward, backward):
    """An autograd function of this name, from two plain functions of tensor and group."""

    def forward_(ctx, x, group):
        ctx.group = group
        return forward(x, group)

    def backward_(ctx, gradient):
        return backward(gradient, ctx.group), None

    both = {"forward": staticmethod(forward_), "backward": staticmethod(backward_)}
    return type(name, (Function,), both)


def _as_it_is(x, group):
    return x.view_as(x)


def _in_place(x, group):
    dist.all_reduce(x, group=group)
    return x.view_as(x)


def _everywhere(x, group):
    return wire.all_reduce(x)


def _mean(x, group):
    return wire.all_reduce(x, group) / dist.get_world_size(group)


def _named(made, name):
    made.__name__ = made.__qualname__ = name
    return made


def _column(dim=0, parts=None, bias=True, enters=True, by_hand=False, twice=False):
    """A cut by columns in which one thing can go wrong."""

    class Made(nn.Module):
        def __init__(self, whole, region, blocks=1):
            super().__init__()
            self.region = region
            blocks = parts or blocks
            self.weight = region.cut(whole.weight, dim, blocks)
            self.bias = region.cut(whole.bias, 0, blocks) if bias else whole.bias
            if by_hand:
                self.weight = nn.Parameter(self.weight.detach().clone())

        def forward(self, x):
            x = self.region.enter(x) if enters else x
            x = self.region.enter(x) if twice else x
            return linear(x, self.weight, self.bias)

    return _named(Made, "ColumnParallelLinear")


def _row(dim=1, early=False, without=False, leaves=True, as_parameter=True):
    """A cut by rows in which one thing can go wrong."""

    class Made(nn.Module):
        def __init__(self, whole, region):
            super().__init__()
            self.region = region
            self.weight = region.cut(whole.weight, dim)
            self.bias = whole.bias if as_parameter else whole.bias.detach()

        def forward(self, x):
            if early:
                return self.region.leave(linear(x, self.weight, self.bias))
            y = linear(x, self.weight)
            y = self.region.leave(y) if leaves else y
            return y if without else y + self.bias

    return _named(Made, "RowParallelLinear")


def _only_first():
    """Rank 0 alone calls g, since it alone adds the bias: the others never come."""

    base = _row()

    class Made(base):
        __init__ = base.__init__

        def forward(self, x):
            y = linear(x, self.weight)
            return self.region.leave(y + self.bias) if self.region.rank == 0 else y

    return _named(Made, "RowParallelLinear")


def _two_sums():
    """Right numbers by two sums, of half of the inputs each."""

    base = _row()

    class Made(base):
        __init__ = base.__init__

        def forward(self, x):
            halves = self.weight.tensor_split(2, dim=1)
            pieces = x.tensor_split(2, dim=-1)
            both = zip(pieces, halves, strict=True)
            return sum(self.region.leave(linear(*each)) for each in both) + self.bias

    return _named(Made, "RowParallelLinear")


def _written_out():
    """Right in another form: a product of matrices, and parameters registered by name."""

    class Made(nn.Module):
        def __init__(self, whole, region, parts=1):
            super().__init__()
            self.region = region
            for name, parameter in whole.named_parameters():
                self.register_parameter(name, region.cut(parameter.data, parts=parts))

        def forward(self, x):
            return torch.matmul(self.region.enter(x), self.weight.mT).add(self.bias)

    return _named(Made, "ColumnParallelLinear")


def _with(f=region.Copy, g=region.Sum, column=None, row=None):
    return [f, g, column or region.ColumnParallelLinear, row or region.RowParallelLinear]


def _summed(x, group):
    return wire.all_reduce(x, group)


_FIRST, _SECOND, _THIRD = (f"step {n} of 4.*" for n in (1, 2, 3))
RIGHT = [
    (
        "in another form",
        _with(
            f=function("Copy", lambda x, _: x.clone(), _summed),
            g=function("Sum", _summed, lambda x, _: x.clone()),
            column=_written_out(),
        ),
    )
]
WRONG = [
    (
        "f omitted",
        _with(f=function("Copy", _as_it_is, lambda x, _: x)),
        _FIRST + "gradient that f returns is what comes back on this rank alone",
    ),
    (
        "f sums forward as well",
        _with(f=function("Copy", _summed, _summed)),
        _FIRST + "the result of f is 3 times what is expected: f gives every rank what it gets",
    ),
    (
        "f sums in place",
        _with(f=function("Copy", _as_it_is, _in_place)),
        _FIRST + "f changes the gradient that it is given",
    ),
    (
        "f forgets its group",
        _with(f=function("Copy", _as_it_is, _everywhere)),
        _FIRST + r"in the group of ranks \[0, 1\].*more ranks than those of the group",
    ),
    (
        "g sums again on the way back",
        _with(g=function("Sum", _summed, _summed)),
        _FIRST + "gradient that g returns is 3 times.*already, whole",
    ),
    (
        "g divides the gradient",
        _with(g=function("Sum", _summed, lambda x, group: x / dist.get_world_size(group))),
        _FIRST + "gradient that g returns is 1/3 of.*whole gradient of a sum",
    ),
    (
        "g takes the mean",
        _with(g=function("Sum", _mean, lambda x, _: x)),
        _FIRST + "the result of g is 1/3 of.*the mean",
    ),
    ("columns cut as rows", _with(column=_column(dim=1)), _SECOND + "weight has shape"),
    (
        "q, k and v in one piece",
        _with(column=_column(parts=1)),
        _SECOND + "18 outputs of q, k and v: weight is the share of q, k and v cut in one piece",
    ),
    (
        "the bias not cut",
        _with(column=_column(bias=False)),
        _SECOND + "bias has shape",
    ),
    (
        "no f before the columns",
        _with(column=_column(enters=False)),
        _SECOND + "gradient is what this rank's columns alone give",
    ),
    (
        "f twice",
        _with(column=_column(twice=True)),
        _SECOND + "its input's gradient is 3 times.*once more",
    ),
    ("cut by hand", _with(column=_column(by_hand=True)), _SECOND + "not from region.cut"),
    (
        "a bias on every rank",
        _with(row=_row(early=True)),
        _THIRD + "the result is the sum with the bias 3 times",
    ),
    (
        "no bias",
        _with(row=_row(without=True)),
        _THIRD + "the result is the sum without the bias",
    ),
    (
        "no sum",
        _with(row=_row(leaves=False)),
        _THIRD + "the result is what this rank alone computes",
    ),
    ("a bias that does not learn", _with(row=_row(as_parameter=False)), _THIRD + "no bias"),
    ("rows cut as columns", _with(row=_row(dim=0)), _THIRD + "weight has shape"),
    (
        "the first rank alone sums",
        _with(row=_only_first()),
        # Warm ranks stay, and fresh ones are gone when they have returned.
        _THIRD + "(nothing moves.*rank 0 is in allreduce|rank 0 lost its conn).*of your code",
    ),
    (
        "two sums",
        _with(row=_two_sums()),
        "step 4 of 4.*rank 0 makes more all-reduce calls.*forward, attention and MLP",
    ),
]
