"""Cut layers that the check must refuse, as patches of the course's own."""

import torch
from torch import nn

from course_lib.scratch.tensor import ColumnParallelLinear, Copy, RowParallelLinear, Sum
from tests.checking.builds.patches import patched, versions


class WrittenOut(nn.Module):
    """A product of matrices, and parameters registered by name."""

    def __init__(self, whole, region, parts=1):
        super().__init__()
        self.region = region
        for name, parameter in whole.named_parameters():
            self.register_parameter(name, region.cut(parameter.data, parts=parts))

    def forward(self, x):
        return torch.matmul(self.region.enter(x), self.weight.mT).add(self.bias)


WrittenOut.__name__ = "ColumnParallelLinear"
RIGHT = [
    (
        "in another form",
        [
            patched(Copy, "return x", "return x.clone()"),
            patched(Sum, "return gradient, None", "return gradient.clone(), None"),
            WrittenOut,
            RowParallelLinear,
        ],
    )
]
_F = r"""
f omitted
- all_reduce(gradient, ctx.group)
+ gradient
? 1 gradient that f returns is what this rank alone has
f forgets its group
+ all_reduce(gradient)
? 1 in the group of ranks \[0, 2\].*more ranks than those of the group
rank 1 leaves out the sum of f
+ (gradient if dist.get_rank() == 1 else all_reduce(gradient, ctx.group))
? 1 nothing moves.*rank 0 is in allreduce, at line .*rank 1 has done f's backward
f sums forward as well
- return x
+ return all_reduce(x, group)
? 1 the result of f is 3 times what is expected: f gives every rank what it gets
f sums in place
- return all_reduce(gradient, ctx.group), None
+ dist.all_reduce(gradient, group=ctx.group)
+ return gradient, None
? 1 f changes the gradient that it is given
"""
_G = """
g sums again on the way back
- return all_reduce(x, group)
+ ctx.group = group
+ return all_reduce(x, group)
- return gradient, None
+ return all_reduce(gradient, ctx.group), None
? 1 gradient that g returns is 3 times.*already, whole
g divides the gradient
+ ctx.group = group
+ return all_reduce(x, group)
- return gradient, None
+ return gradient / dist.get_world_size(ctx.group), None
? 1 gradient that g returns is 1/3 of.*whole gradient of a sum
g takes the mean
- all_reduce(x, group)
+ all_reduce(x, group) / dist.get_world_size(group)
? 1 the result of g is 1/3 of.*the mean
g sums twice at once
+ all_reduce(torch.stack([x, x]), group)[0]
? 1 g, forward, sends more bytes by all-reduce
g in fp32
+ all_reduce(x.float(), group)
? 1 in bfloat16: the result of g is of torch.float32
g only where gradients are asked for
+ all_reduce(x, group) if x.requires_grad else x.clone()
? 1 the result of g where nothing asks for gradients is what this rank alone has
"""
_COLUMN = """
columns cut as rows
- whole.weight, 0, parts
+ whole.weight, 1, parts
? 2 weight has shape
q, k and v in one piece
+ whole.weight, 0, 1
- whole.bias, 0, parts
+ whole.bias, 0, 1
? 2 18 outputs of q, k and v: weight is the share of all parts cut in one piece
no f before the columns
- self.region.enter(x)
+ x
? 2 gradient of its input is what this rank's columns alone give
f twice
+ self.region.enter(self.region.enter(x))
? 2 gradient of its input is 3 times.*once more
its own f
+ Copy.apply(x, self.region.group)
? 2 it does not go by region.enter
cut by hand
- region.cut(whole.weight, 0, parts)
+ nn.Parameter(region.cut(whole.weight, 0, parts).detach().clone())
? 2 not from region.cut
keeps the whole: module
- self.region = region
+ self.region, self.kept = region, [whole]
? 2 the layer keeps
keeps the whole: closure
+ self.region, self.again = region, lambda: whole.weight
? 2 the layer keeps
"""
_ROW = """
a bias on every rank
- linear(x, self.weight)) + self.bias
+ linear(x, self.weight, self.bias))
? 3 the result is the sum with the bias 3 times
no bias
+ linear(x, self.weight))
? 3 the result is the sum without the bias
a share of the bias on each
+ linear(x, self.weight, self.bias / self.region.ranks))
? 3 the gradient of its bias is 1/3
no sum
- self.region.leave(linear(x, self.weight))
+ linear(x, self.weight)
? 3 the result is what this rank alone computes
two sums
+ sum(self.region.leave(linear(*each)) for each in zip(
+     x.tensor_split(2, dim=-1), self.weight.tensor_split(2, dim=1), strict=True
+ ))
? 4 rank 0 of 3.* makes more all-reduce calls.*forward, attention and MLP
a bias that does not learn
- nn.Parameter(whole.bias.detach().clone())
+ whole.bias.detach()
? 3 bias is missing
"""
WRONG = versions(Copy, lambda f: [f, Sum, ColumnParallelLinear, RowParallelLinear], _F)
WRONG += versions(Sum, lambda g: [Copy, g, ColumnParallelLinear, RowParallelLinear], _G)
WRONG += versions(ColumnParallelLinear, lambda cut: [Copy, Sum, cut, RowParallelLinear], _COLUMN)
WRONG += versions(RowParallelLinear, lambda cut: [Copy, Sum, ColumnParallelLinear, cut], _ROW)
