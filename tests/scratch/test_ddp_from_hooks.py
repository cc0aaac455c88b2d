"""DDP written out: the mean gradient, buckets as predicted, and clear errors."""

import pytest
import torch
import torch.distributed as dist
from together import sentence
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib import launch
from course_lib.measure.wire import log_wire
from course_lib.scratch.ddp import DDP, fill
from course_lib.scratch.gpt import GPT
from course_lib.theory.network.bucket_timeline import ddp_buckets

MIB = 2**20


def small_model(seed=0):
    torch.manual_seed(seed)
    return GPT(layers=2, hidden=16, heads=2, vocab=11, context=5)


def rows(rank, world):
    """This rank's rows of a batch that all ranks know; their number differs."""
    torch.manual_seed(1)
    return torch.randint(0, 11, (7, 5)).tensor_split(world)[rank]


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def mean_over_ranks():
    """Largest difference between DDP's gradients and the mean of all ranks' own gradients."""
    rank = launch.init()
    tokens = rows(rank.rank, rank.world)
    alone, ddp = small_model(), DDP(small_model(seed=rank.rank), cap_bytes=2000)
    gaps, sizes = [], []
    for _ in range(2):
        alone(tokens).square().sum().backward()
        with log_wire() as log:
            ddp(tokens).square().sum().backward()
        sizes.append([call.bytes for call in log.calls])
        for name, gradient in gradients(alone).items():
            mean = gradient.clone()
            dist.all_reduce(mean)
            gaps.append(float((mean / rank.world - gradients(ddp.module)[name]).abs().max()))
        for model in (alone, ddp):
            model.zero_grad(set_to_none=False)
    return max(gaps), sizes


def test_gradients_are_the_mean_over_ranks():
    predicted = ddp_buckets([p.nbytes for p in reversed(list(small_model().parameters()))], 2000)
    assert len(predicted) == 7
    for gap, sizes in launch.run(mean_over_ranks, ranks=3):
        assert gap < 1e-4  # of sums up to 30: float32 in another order
        assert sizes == [predicted] * 2


@pytest.mark.parametrize(
    ("cap", "first"), [(1, MIB), (4096, 50_000), (300_000, 50_000), (25 * MIB, 1), (25 * MIB, MIB)]
)
def test_buckets_are_filled_as_predicted(cap, first):
    parameters = list(GPT(2, 160, 4, vocab=50, context=20).parameters())
    ours = [sum(p.nbytes for p in bucket) for bucket in fill(parameters, cap, first)]
    assert ours == ddp_buckets([p.nbytes for p in reversed(parameters)], cap, first)


def test_a_bucket_has_one_dtype():
    parameters = [nn.Parameter(torch.ones(2, dtype=kind)) for kind in (torch.half, torch.float)]
    assert [len(bucket) for bucket in fill(parameters, MIB, MIB)] == [1, 1]


class Branches(nn.Module):
    """Two layers, of which the second takes part only where it is told to."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, both):
        return self.sometimes(self.always(x)) if both else self.always(x)


def unused(users, find_unused=False):
    """The gradient of what the ranks of `users` alone use, after two backward passes."""
    rank = launch.init()
    ddp = DDP(Branches(), find_unused=find_unused)
    for _ in range(2):
        ddp.zero_grad()
        ddp(torch.ones(1, 3), rank.rank in users).sum().backward()
    return ddp.module.sometimes.bias.grad


def test_an_unused_parameter_is_named():
    with pytest.raises(launch.RankFailed, match=r"sometimes\.weight, sometimes\.bias") as failure:
        launch.run(unused, [1], ranks=2, timeout_s=60)
    assert failure.match("no gradient on rank 0")
    assert failure.match("set find_unused=True")


def used_by_some():
    return [unused(users, True).tolist() for users in ([], [0])]


def test_find_unused_takes_its_gradient_as_zero():
    assert launch.run(used_by_some, ranks=2) == [[[0.0] * 3, [0.5] * 3]] * 2


class Twice(nn.Module):
    """One layer, checkpointed and used twice, and another behind it."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant, self.shared, self.last = reentrant, nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.shared, x, use_reentrant=self.reentrant)
        return self.last(x)


def checkpointed(reentrant):
    ddp = DDP(Twice(reentrant))
    ddp(torch.ones(1, 3, requires_grad=True)).sum().backward()
    return len(gradients(ddp.module))


def both_checkpointed():
    return checkpointed(False), sentence(checkpointed, True)


def test_a_second_gradient_in_one_backward_is_refused():
    for count, said in launch.run(both_checkpointed, ranks=2):
        assert count == 4 and "second gradient in one backward pass" in said
