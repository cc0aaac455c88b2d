"""DDP's timeline beside torch's DDP: layers that sleep, and a link that sleeps between two ranks.

As in section 7.4, with naps of different lengths. Others on the machine only ever make a pass
longer, so of some passes the quickest counts, and there are more of them until one was undisturbed.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline

LAYER = 4 * 256 * 256  # bytes of a layer's weights
LINK = Link("30 ms a layer", bytes_per_s=LAYER / 0.030)
NAPS_S = (0.030, 0.010, 0.020, 0.010, 0.030, 0.020)  # in backward's order
GRADIENTS = [Gradient(f"layer {place}", LAYER, nap_s) for place, nap_s in enumerate(NAPS_S)]
IN_A_BUCKET = {"a layer": 1, "two layers": 2, "all": 6}
MOST = 1.25  # a quickest pass takes so many times its prediction at the most: 1.01 to 1.05 alone


class Nap(torch.autograd.Function):
    """Changes nothing; its backward pass sleeps."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.layer.nap_s)
        ctx.layer.naps.append(time.perf_counter())
        return gradient, None


class Layer(nn.Linear):
    """A matrix whose gradient follows a nap; `naps` are the times at which somebody woke up."""

    def __init__(self, nap_s, naps):
        super().__init__(256, 256, bias=False)
        self.nap_s, self.naps = nap_s, naps

    def forward(self, x):
        return Nap.apply(super().forward(x), self)


class SleepingLink:
    """Carries a bucket at a time: a real all-reduce, then sleep until LINK would have ended."""

    def __init__(self):
        self.thread, self.carried, self.group = ThreadPoolExecutor(1), [], dist.new_group()

    def hook(self, _, bucket):
        arrived = torch.futures.Future()
        self.thread.submit(self.carry, bucket.buffer(), arrived)
        return arrived

    def carry(self, flat, arrived):
        start = time.perf_counter()
        dist.all_reduce(flat.div_(dist.get_world_size()), group=self.group)
        time.sleep(max(0.0, start + flat.nbytes / LINK.bytes_per_s - time.perf_counter()))
        self.carried.append((flat.nbytes, start, time.perf_counter()))
        arrived.set_result(flat)


def passes(cap_bytes, count):
    """Of each pass: seconds, when naps ended, and of each bucket bytes, start and end."""
    naps, link, found = [], SleepingLink(), []
    layers = [Layer(nap_s, naps) for nap_s in reversed(NAPS_S)]
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=cap_bytes / 2**20)
    ddp.register_comm_hook(None, link.hook)
    for _ in range(count):
        loss = ddp(torch.ones(1, 256)).sum()
        naps.clear()
        link.carried.clear()
        dist.barrier(group=link.group)
        zero = time.perf_counter()
        loss.backward()
        seconds = time.perf_counter() - zero
        carried = [(size, start - zero, end - zero) for size, start, end in link.carried]
        found.append((seconds, [at - zero for at in naps], carried))
    return found


def quickest_passes(count):
    launch.init()
    # DDP forms its buckets in the first pass.
    return {
        name: min(passes(layers * LAYER, count)[1:]) for name, layers in IN_A_BUCKET.items()
    }  # fmt: skip


def plan(name):
    cap = IN_A_BUCKET[name] * LAYER
    return ddp_timeline(GRADIENTS, 2, LINK, cap_bytes=cap, first_bytes=cap)


@pytest.fixture(scope="module")
def quickest():
    """By the size of buckets, the quickest pass of rank 0."""
    best = {name: (float("inf"), [], []) for name in IN_A_BUCKET}
    for count in (4, 8, 16, 32):
        found = launch.run(quickest_passes, count, ranks=2, stream=False)[0]
        best = {name: min(best[name], found[name]) for name in best}
        if all(best[name][0] < 1.1 * plan(name).end_s for name in best):
            break
    return best


@pytest.mark.parametrize("name", IN_A_BUCKET)
def test_buckets_and_times_are_those_of_torchs_ddp(quickest, name):
    seconds, _, carried = quickest[name]
    predicted = plan(name)
    assert [size for size, *_ in carried] == [each.size_bytes for each in predicted.exchanges]
    # Nobody wakes up early, so nothing is before its prediction.
    assert 0.99 * predicted.end_s < seconds < MOST * predicted.end_s
    for (_, start, end), each in zip(carried, predicted.exchanges, strict=True):
        assert start > 0.99 * each.start_s and end > 0.99 * each.end_s


@pytest.mark.parametrize("name", IN_A_BUCKET)
def test_a_bucket_leaves_when_it_is_full_and_the_link_is_free(quickest, name):
    """The rule itself, by the run's own times: what is late before it does not count."""
    seconds, naps, carried = quickest[name]
    assert len(naps) == len(NAPS_S)
    late_s, free_s = 0.0, 0.0
    for full, (_, start, end) in zip(accumulate(len_of(carried)), carried, strict=True):
        may_start = max(naps[full - 1], free_s)
        assert start >= may_start
        late_s, free_s = late_s + start - may_start, end
    assert late_s < (MOST - 1) * seconds


def len_of(carried):
    """Layers of each bucket."""
    return [size // LAYER for size, *_ in carried]


def test_small_buckets_are_quicker_by_the_predicted_ratio(quickest):
    measured = quickest["a layer"][0] / quickest["all"][0]
    expected = plan("a layer").end_s / plan("all").end_s
    assert expected == pytest.approx(0.7)
    assert expected / MOST < measured < expected * MOST < 1
