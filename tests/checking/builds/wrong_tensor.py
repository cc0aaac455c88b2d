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


def _where_asked(x, group):
    return wire.all_reduce(x, group) if x.requires_grad else x.clone()


def _named(made, name):
    made.__name__ = made.__qualname__ = name
    return made


def _column(dim=0, pieces=None, bias=True, enters=True, by_hand=False, twice=False):
    """A cut by columns in which one thing can go wrong."""

    class Made(nn.Module):
        def __init__(self, whole, region, parts=1):
            super().__init__()
            self.region = region
            parts = pieces or parts
            self.weight = region.cut(whole.weight, dim, parts)
            self.bias = region.cut(whole.bias, 0, parts) if bias else whole.bias
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


def _with(f=None, g=None, column=None, row=None):
    f, g = f or region.Copy, g or region.Sum
    return [f, g, column or region.ColumnParallelLinear, row or region.RowParallelLinear]


def _summed(x, group):
    return wire.all_reduce(x, group)


def _gathers(x, group):
    """The sum of what all ranks have sent whole."""
    return wire.all_gather(x[None], group).sum(0)


def _fp32(x, group):
    return wire.all_reduce(x.float(), group)


def _copied_in_fp32(x, _):
    return x.float()


def _not_rank_1(x, group):
    return x if dist.get_rank() == 1 else wire.all_reduce(x, group)


def _twice_at_once(x, group):
    return wire.all_reduce(torch.stack([x, x]), group)[0]


class LatestGroup(Function):
    """f that remembers one group for all calls."""

    @staticmethod
    def forward(ctx, x, group):
        LatestGroup.group = group
        return x

    @staticmethod
    def backward(ctx, gradient):
        return wire.all_reduce(gradient, LatestGroup.group), None


LatestGroup.__name__ = "Copy"


def _extended(base, name, **methods):
    """A right layer with some methods changed."""
    return _named(type(name, (base,), methods), name)


def _keeps(what):
    """A column cut that keeps more of the whole layer than its share."""

    base = _column()

    def init(self, whole, region, parts=1):
        base.__init__(self, whole, region, parts)
        if what == "parameter":
            self.whole_weight = whole.weight
        if what == "module":
            self.kept = [whole]
        if what == "copy":
            self.full = whole.weight.detach().clone()
        if what == "closure":
            self.again = lambda: whole.weight
        if what == "view":
            rows = len(self.weight)
            own = whole.weight.detach()[region.rank * rows : (region.rank + 1) * rows]
            self.weight.data = own if parts == 1 else self.weight.data

    return _extended(base, "ColumnParallelLinear", __init__=init)


def _first_input(self, x):
    """Remembers how many rows came first."""
    self.rows = getattr(self, "rows", len(x))
    return linear(self.region.enter(x[: self.rows]), self.weight, self.bias)


def _own_f(self, x):
    return linear(region.Copy.apply(x, self.region.group), self.weight, self.bias)


def _own_g(self, x):
    return region.Sum.apply(linear(x, self.weight), self.region.group) + self.bias


def _bias_on_rank_0(self, x):
    own = self.bias if self.region.rank == 0 else None
    return self.region.leave(linear(x, self.weight, own))


def _shared_bias(self, x):
    return self.region.leave(linear(x, self.weight, self.bias / self.region.ranks))


def _changed(f=None, g=None, column=None, row=None):
    """Right layers whose forward pass is another one."""
    if column:
        column = _extended(_column(), "ColumnParallelLinear", forward=column)
    return _with(f, g, column, row and _extended(_row(), "RowParallelLinear", forward=row))


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
        _FIRST + "gradient that f returns is what this rank alone has",
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
        _FIRST + r"in the group of ranks \[0, 2\].*more ranks than those of the group",
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
        _with(column=_column(pieces=1)),
        _SECOND + "18 outputs of q, k and v: weight is the share of all parts cut in one piece",
    ),
    (
        "the bias not cut",
        _with(column=_column(bias=False)),
        _SECOND + "bias has shape",
    ),
    (
        "no f before the columns",
        _with(column=_column(enters=False)),
        _SECOND + "gradient of its input is what this rank's columns alone give",
    ),
    (
        "f twice",
        _with(column=_column(twice=True)),
        _SECOND + "gradient of its input is 3 times.*once more",
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
    ("a bias that does not learn", _with(row=_row(as_parameter=False)), _THIRD + "bias is missing"),
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
        "step 4 of 4.*rank 0 of 3 makes more all-reduce calls.*forward, attention and MLP",
    ),
    (
        "the group of the latest call",
        _with(f=LatestGroup),
        _FIRST + "(gradient that f returns|number of bytes)",
    ),
    (
        "f gathers and adds up",
        _with(f=function("Copy", _as_it_is, _gathers)),
        _FIRST + "makes more all-gather calls",
    ),
    (
        "g sums twice at once",
        _with(g=function("Sum", _twice_at_once, lambda x, _: x)),
        _FIRST + "g, forward, sends more bytes by all-reduce",
    ),
    (
        "f in fp32",
        _with(f=function("Copy", _copied_in_fp32, _summed)),
        _FIRST + "in bfloat16: the result of f is of torch.float32",
    ),
    (
        "g in fp32",
        _with(g=function("Sum", _fp32, lambda x, _: x)),
        _FIRST + "in bfloat16: the result of g is of torch.float32",
    ),
    (
        "g only where gradients are asked for",
        _with(g=function("Sum", _where_asked, lambda x, _: x)),
        _FIRST + "the result of g where nothing asks for gradients is what this rank alone has",
    ),
    (
        "rank 1 leaves out the sum of f",
        _with(f=function("Copy", _as_it_is, _not_rank_1)),
        _FIRST + "nothing moves.*rank 0 is in allreduce, at line .*rank 1 has done f's backward",
    ),
    (
        "rank 1 leaves out the sum of g",
        _with(g=function("Sum", _not_rank_1, lambda x, _: x)),
        _FIRST + "nothing moves.*rank 0 is in allreduce, at line .*rank 1 has done g's forward",
    ),
    *[
        (f"keeps the whole: {what}", _with(column=_keeps(what)), _SECOND + "the layer keeps")
        for what in ("parameter", "module", "copy", "closure")
    ],
    ("keeps the whole: view", _with(column=_keeps("view")), _SECOND + "the layer keeps"),
    (
        "as many rows as at first",
        _changed(column=_first_input),
        _SECOND + "the result has shape",
    ),
    (
        "its own f",
        _changed(column=_own_f),
        _SECOND + "it does not go by region.enter",
    ),
    ("its own g", _changed(row=_own_g), _THIRD + "it does not go by region.leave"),
    (
        "the bias on rank 0 alone",
        _changed(row=_bias_on_rank_0),
        _THIRD + "rank 1 of 3, 6 outputs: the gradient of its bias is missing",
    ),
    (
        "a share of the bias on each",
        _changed(row=_shared_bias),
        _THIRD + "the gradient of its bias is 1/3",
    ),
]
