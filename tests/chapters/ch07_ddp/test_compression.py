"""Compressed gradients: by hand, and what torch's own hook gives to all-reduce on two ranks."""

from unittest import mock

import torch
import torch.distributed as dist
from probes import Probe, by_name
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.chapters.ch07_ddp.compression import powersgd_bytes


def test_matrices_by_hand():
    # 4 · (1024 + 4096) of 4,194,304 numbers: a part in 204.8.
    assert powersgd_bytes([(1024, 4096), (4096,)], rank=4) == 4 * (20_480 + 4096)
    # A rank larger than the matrix is that of the matrix.
    assert powersgd_bytes([(3, 1000)], rank=8, least_saving=0) == 4 * 3 * 1003
    # A number is a vector of one.
    assert powersgd_bytes([()], rank=1) == powersgd_bytes([(1,)], rank=1) == 4
    # Rank 1 of 4 × 4 is 8 of 16 numbers: not less than half.
    assert powersgd_bytes([(4, 4)], rank=1) == 4 * 16
    assert powersgd_bytes([(4, 4)], rank=1, least_saving=1.0) == 4 * 8


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 24), nn.Linear(24, 6, bias=False), nn.Linear(6, 3))


def counted(ranks):
    """For each rank of the approximation: bytes of the third pass, the first one compressed."""
    launch.init()
    found = []
    for rank in ranks:
        ddp = DistributedDataParallel(model())
        ddp.register_comm_hook(PowerSGDState(None, rank, start_powerSGD_iter=2), powerSGD_hook)
        for _ in range(3):
            # The hook goes on in another thread, which measure.wire would not hear.
            with mock.patch("torch.distributed.all_reduce", wraps=dist.all_reduce) as calls:
                ddp(torch.ones(2, 40)).square().sum().backward()
        found.append(sum(call.args[0].nbytes for call in calls.call_args_list))
    return found


def test_torch_gives_as_much_to_all_reduce():
    shapes, ranks = [tuple(p.shape) for p in model().parameters()], [1, 2, 5, 50]
    expected = [powersgd_bytes(shapes, rank) for rank in ranks]
    assert len(set(expected)) > 2  # otherwise this test shows little
    assert launch.run(counted, ranks, ranks=2) == [expected] * 2


REFUSED = [
    (lambda: powersgd_bytes([(4, 4)], 0), "rank must be at least 1"),
    (lambda: powersgd_bytes([(4, 0)], 1), r"shapes\[0\] must be at least 1"),
    (lambda: powersgd_bytes([(4, 4)], 1, -1.0), "least_saving must be at least 0"),
    (lambda: powersgd_bytes([(4, 4)], 1, element_bytes=0), "element_bytes must be at least 1"),
]
PROBES = by_name(Probe(powersgd_bytes, {"shapes": [(8, 16)], "rank": 2}))
