"""The log of collectives sees each operation once, with the bytes that were sent."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.measure.wire import log_wire
from course_lib.scratch import wire

X = 16  # bytes of torch.ones(4)


def logged():
    """What each operation logs, by its name."""
    rank = launch.init()
    alone = [dist.new_group([number]) for number in range(rank.world)][rank.rank]
    x, mesh = torch.ones(4), init_device_mesh("cpu", (rank.world,))
    ddp = DistributedDataParallel(torch.nn.Linear(4, 3))
    calls = {
        "all-reduce": lambda: dist.all_reduce(x),
        "all-gather": lambda: wire.all_gather(x),
        "all-gather of a list": lambda: dist.all_gather([torch.empty(4), torch.empty(4)], x),
        "reduce-scatter": lambda: wire.reduce_scatter(x),
        "all-to-all": lambda: dist.all_to_all_single(torch.empty(4), x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "functional": lambda: functional.all_reduce(x, "sum", dist.group.WORLD) + 1,
        "message": lambda: message(rank.rank, x),
        "alone": lambda: dist.all_reduce(x, group=alone),
        "functional alone": lambda: functional.all_reduce(x, "sum", alone) + 1,
        "barrier": lambda: dist.barrier(),
        # The sum of a sharded tensor is one part a rank; the root needs all of them.
        "inside a DTensor": lambda: DTensor.from_local(x, mesh, [Shard(0)]).sum().sqrt(),
        "ddp": lambda: ddp(x).sum().backward(),
    }
    found = {}
    for name, call in calls.items():
        with log_wire() as log:
            call()
        with log_wire(enabled=False) as nothing:
            call()
        assert nothing.sent() == {}, name
        found[name] = log.sent()
    return found


def message(rank, x):
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)


EXPECTED = {
    "all-reduce": {"all-reduce": (1, X)},
    "all-gather": {"all-gather": (1, 2 * X)},
    "all-gather of a list": {"all-gather": (1, 2 * X)},
    "reduce-scatter": {"reduce-scatter": (1, X)},
    "all-to-all": {"all-to-all": (1, X)},
    "broadcast": {"broadcast": (1, X)},
    "functional": {"all-reduce": (1, X)},
    "message": {"send-recv": (1, X)},
    "alone": {},
    "functional alone": {},
    "barrier": {},
    "inside a DTensor": {"all-reduce": (1, 4)},
    "ddp": {"all-reduce": (1, 4 * (4 * 3 + 3))},
}


def test_each_operation_is_logged_and_a_message_only_where_it_is_sent():
    first, second = launch.run(logged, ranks=2)
    assert first == EXPECTED
    assert second == EXPECTED | {"message": {}}


def by_axis():
    rank = launch.init()
    rows = dist.new_group([0, 1])
    axes = {rows.group_name: "tp", dist.group.WORLD.group_name: "dp"}
    with log_wire() as log:
        dist.all_reduce(torch.ones(4), group=rows)
        dist.all_reduce(torch.ones(2))
        functional.all_reduce(torch.ones(1), "sum", rows) + 1
        if rank.rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
    return log.trace, log.sent(axes), log.sent()


def test_calls_are_events_told_apart_by_the_axis_of_their_group():
    (first, axes, _), (second, *same) = launch.run(by_axis, ranks=2)
    assert axes.pop("dp send-recv") == (1, 4) and same == [axes, {"all-reduce": (3, 28)}]
    assert axes == {"tp all-reduce": (2, 20), "dp all-reduce": (1, 8)}
    assert [(e.at, e.who, e.what, e.part, e.to, e.bytes) for e in first] == [
        *((number, 0, "all-reduce", 2, None, size) for number, size in enumerate((16, 8, 4))),
        (3, 0, "send-recv", 2, 1, 4),
    ]
    assert [e.who for e in second] == [1, 1, 1]
