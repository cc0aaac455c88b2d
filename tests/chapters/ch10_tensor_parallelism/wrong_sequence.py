"""Ways into and out of a pair that the check must refuse, as patches of the course's own."""

from course_lib.scratch.tensor import Gather, SumScatter
from tests.checking.builds.patches import patched, versions

RIGHT = [
    (
        "by movedim",
        [
            patched(
                Gather,
                "_along_sequence(all_gather, x, group)",
                "all_gather(x.movedim(1, 0), group).movedim(0, 1)",
            ),
            SumScatter,
        ],
    )
]
_GATHER = """
along the batch
- _along_sequence(all_gather, x, group)
+ all_gather(x, group)
? 1 along the batch, not
reshaped after joining
+ all_gather(x, group).view(x.shape[0], -1, x.shape[2])
? 1 shares one after another, whose samples
gathers from all
+ _along_sequence(all_gather, x, None)
? 1 (group of|number of bytes)
in fp32
+ _along_sequence(all_gather, x.float(), group)
? 1 is of torch.float32, and was given
by sample
+ torch.stack([all_gather(sample, group) for sample in x])
? 1 more all-gather calls
cuts the gradient only
- return _along_sequence(reduce_scatter, gradient, ctx.group), None
+ ranks, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
+ return gradient.chunk(ranks, 1)[rank].contiguous(), None
? 1 backward: the share is this rank's own part, to which nothing was added
the gradient put to 0
+ share = _along_sequence(reduce_scatter, gradient, ctx.group)
+ gradient.detach().zero_()
+ return share, None
? 1 changes the gradient that it is given
the mean
- _along_sequence(reduce_scatter, gradient, ctx.group)
+ _along_sequence(reduce_scatter, gradient, ctx.group) / dist.get_world_size(ctx.group)
? 1 1/2 of what is expected: the mean
"""
_SCATTER = """
cuts what lies in memory
- _along_sequence(reduce_scatter, x, group)
+ reduce_scatter(x.flatten(), group).view(x.shape[0], -1, x.shape[2])
? 2 a part of the batch, not of the sequence
sums in fp32
+ _along_sequence(reduce_scatter, x.float(), group)
? 2 is of torch.float32
an all-reduce, then cut
- return _along_sequence(reduce_scatter, x, group)
+ ranks, rank = dist.get_world_size(group), dist.get_rank(group)
+ return all_reduce(x, group).chunk(ranks, 1)[rank].contiguous()
? 2 more all-reduce calls
adds up in place
+ dist.all_reduce(x.detach(), group=group)
+ return x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()
? 2 changes its argument
"""
WRONG = versions(Gather, lambda into: [into, SumScatter], _GATHER)
WRONG += versions(SumScatter, lambda out: [Gather, out], _SCATTER)
