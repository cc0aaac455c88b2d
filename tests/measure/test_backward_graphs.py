"""When backward graphs have run: one for each bucket of DDP, or one for all."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.measure.gradients import log_backward


class Chain(nn.Module):
    """A forward of our own: torch's compiler passes over that of nn.Sequential."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(3))  # 1 MiB

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def order(cut):
    """Graphs and buckets in the order in which they happen, in the third pass."""
    launch.init()
    events = []

    def send(_, bucket):
        events.append("bucket")
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp = DistributedDataParallel(Chain(), bucket_cap_mb=1)
    ddp.register_comm_hook(None, send)
    with log_backward(lambda: events.append("graph"), cut) as backend:
        compiled = torch.compile(ddp, backend=backend)
        for _ in range(3):
            events.clear()
            compiled(torch.ones(2, 512)).sum().backward()
    return events


def test_a_graph_for_each_bucket_or_one_for_all():
    assert launch.run(order, True, ranks=1) == [["graph", "bucket"] * 3]
    assert launch.run(order, False, ranks=1) == [["graph"] + ["bucket"] * 3]
