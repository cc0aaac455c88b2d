"""DDP written out: the mean gradient, buckets as predicted, no_sync, and clear errors."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from course_lib import launch
from course_lib.measure.wire import log_wire
from course_lib.scratch.collectives import Peers
from course_lib.scratch.ddp import DDP, RingSum, fill
from course_lib.scratch.gpt import GPT
from course_lib.theory.network.bucket_timeline import ddp_buckets

MIB = 2**20


def small_model(seed=0):
    torch.manual_seed(seed)
    return GPT(layers=2, hidden=16, heads=2, vocab=11, context=5)


def rows(rank, world, samples=8):
    """This rank's rows of a batch that all ranks know; their number may differ."""
    torch.manual_seed(1)
    return torch.randint(0, 11, (samples, 5)).tensor_split(world)[rank]


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def mean_over_ranks(cap_bytes, windows, keep):
    """Largest difference between DDP's gradients and the mean of all ranks' own gradients."""
    rank = launch.init()
    tokens = rows(rank.rank, rank.world, samples=7)
    alone, ddp = small_model(), DDP(small_model(seed=rank.rank), cap_bytes)
    gaps, sizes = [], []
    for _ in range(windows):
        alone(tokens).square().sum().backward()
        with log_wire() as log:
            ddp(tokens).square().sum().backward()
        sizes.append([call.bytes for call in log.calls])
        for name, gradient in gradients(alone).items():
            mean = gradient.clone()
            dist.all_reduce(mean)
            gaps.append(float((mean / rank.world - gradients(ddp.module)[name]).abs().max()))
        for model in (alone, ddp):
            model.zero_grad(set_to_none=not keep)
    return max(gaps), sizes


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("cap_bytes", "keep"), [(25 * MIB, False), (2000, True)])
def test_gradients_are_the_mean_over_ranks(ranks, cap_bytes, keep):
    results = launch.run(mean_over_ranks, cap_bytes, 2, keep, ranks=ranks)
    predicted = ddp_buckets(
        [p.nbytes for p in reversed(list(small_model().parameters()))], cap_bytes
    )
    for gap, sizes in results:
        assert gap < 1e-4  # of sums up to 30: float32 in another order
        assert sizes == ([predicted] * 2 if ranks > 1 else [[], []])
    assert len(predicted) == (1 if cap_bytes > MIB else 7)


@pytest.mark.parametrize("cap", [1, 4096, 300_000, 25 * MIB])
@pytest.mark.parametrize("first", [1, 50_000, MIB])
def test_buckets_are_filled_as_predicted(cap, first):
    parameters = list(GPT(2, 160, 4, vocab=50, context=20).parameters())
    ours = [sum(p.nbytes for p in bucket) for bucket in fill(parameters, cap, first)]
    assert ours == ddp_buckets([p.nbytes for p in reversed(parameters)], cap, first)


def test_a_bucket_has_one_dtype():
    parameters = [nn.Parameter(torch.ones(2, dtype=kind)) for kind in (torch.half, torch.float)]
    assert [len(bucket) for bucket in fill(parameters, MIB, MIB)] == [1, 1]


def accumulated(no_sync):
    rank = launch.init()
    ddp = DDP(small_model())
    first, second = rows(rank.rank, rank.world).chunk(2)
    with log_wire() as log:
        if no_sync:
            with ddp.no_sync():
                ddp(first).square().sum().backward()
        else:
            ddp(first).square().sum().backward()
        ddp(second).square().sum().backward()
    flat = torch.cat([g.flatten() for g in gradients(ddp.module).values()])
    return flat, len(log.calls)


def test_no_sync_changes_the_traffic_and_not_the_gradient():
    quiet, few = launch.run(accumulated, True, ranks=2)[0]
    loud, many = launch.run(accumulated, False, ranks=2)[0]
    torch.testing.assert_close(quiet, loud, rtol=1e-5, atol=1e-5)
    assert (few, many) == (1, 2)


def by_torch_and_on_a_ring():
    rank, found = launch.init(), []
    for options in ({}, {"all_reduce": partial(RingSum, peers=Peers())}):
        ddp = DDP(small_model(), 2000, 2000, **options)
        with log_wire() as log:
            ddp(rows(rank.rank, rank.world)).square().sum().backward()
        found.append(torch.cat([g.flatten() for g in gradients(ddp.module).values()]))
    return *found, log.sent()


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_ring_carries_the_buckets_as_well(ranks):
    sizes = ddp_buckets([p.nbytes for p in reversed(list(small_model().parameters()))], 2000, 2000)
    for by_torch, on_a_ring, sent in launch.run(by_torch_and_on_a_ring, ranks=ranks):
        torch.testing.assert_close(on_a_ring, by_torch, rtol=1e-5, atol=1e-5)
        # 2(n-1) messages for each bucket; nothing else is sent.
        messages = {"send-recv": len(sizes) * 2 * (ranks - 1)} if ranks > 1 else {}
        assert {name: total.calls for name, total in sent.items()} == messages


class Branches(nn.Module):
    """Two layers, of which the second takes part only where it is told to."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, both):
        return self.sometimes(self.always(x)) if both else self.always(x)


def unused(users, find_unused=False):
    rank = launch.init()
    ddp = DDP(Branches(), find_unused=find_unused)
    for _ in range(2):
        ddp.zero_grad()
        ddp(torch.ones(1, 3), rank.rank in users).sum().backward()
    return ddp.module.sometimes.bias.grad


@pytest.mark.parametrize(("users", "guilty"), [([], "[01]"), ([0], "1"), ([1], "0")])
def test_an_unused_parameter_is_named(users, guilty):
    with pytest.raises(launch.RankFailed, match=r"sometimes\.weight, sometimes\.bias") as failure:
        launch.run(unused, users, ranks=2, timeout_s=20)
    assert failure.match(f"no gradient on rank {guilty}")
    assert failure.match("set find_unused=True")


@pytest.mark.parametrize("users", [[], [0], [0, 1]])
def test_find_unused_takes_its_gradient_as_zero(users):
    for bias in launch.run(unused, users, True, ranks=2):
        assert bias.tolist() == [len(users) / 2] * 3


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


def test_a_second_gradient_in_one_backward_is_refused():
    assert launch.run(checkpointed, False, ranks=2)[0] == 4
    with pytest.raises(launch.RankFailed, match="second gradient in one backward pass"):
        launch.run(checkpointed, True, ranks=2)


def unused_in_the_library():
    ddp = DistributedDataParallel(Branches())
    for _ in range(2):
        ddp(torch.ones(1, 3), False).sum().backward()


def test_the_library_names_the_same_cause():
    """One update later: its check is in the next forward pass."""
    with pytest.raises(launch.RankFailed, match="RuntimeError: Expected to have finished") as found:
        launch.run(unused_in_the_library, ranks=2, timeout_s=20)
    assert found.match("parameters that were not used in producing loss")
    assert found.match(r"did not receive grad for rank [01]: 2 3")
