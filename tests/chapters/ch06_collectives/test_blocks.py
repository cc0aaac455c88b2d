"""Who holds which block: what torch.distributed really leaves on the ranks."""

import torch
import torch.distributed as dist
from every import every

from course_lib import launch
from course_lib.chapters.ch06_collectives.blocks import OPERATIONS, exchange

RANKS = 4


def by_torch():
    """The numbers that each of torch's operations leaves on this rank."""
    rank = launch.init().rank
    row = torch.arange(1, RANKS + 1) * 10**rank
    first = row[:1]

    def empty(count=1):
        return torch.zeros(count, dtype=torch.int64)

    found = {}
    found["broadcast"] = first.clone()
    dist.broadcast(found["broadcast"], src=0)
    found["scatter"] = empty()
    dist.scatter(found["scatter"], list(row.split(1)) if rank == 0 else None, src=0)
    boxes = [empty() for _ in range(RANKS)] if rank == 0 else None
    dist.gather(first, boxes, dst=0)
    found["gather"] = torch.cat(boxes) if boxes else empty(0)
    summed = first.clone()
    dist.reduce(summed, dst=0)
    found["reduce"] = summed if rank == 0 else empty(0)  # elsewhere it means nothing
    found["all-gather"] = empty(RANKS)
    dist.all_gather_into_tensor(found["all-gather"], first)
    found["reduce-scatter"] = empty()
    dist.reduce_scatter_tensor(found["reduce-scatter"], row)
    found["all-reduce"] = first.clone()
    dist.all_reduce(found["all-reduce"])
    found["all-to-all"] = empty(RANKS)
    dist.all_to_all_single(found["all-to-all"], row)
    message = first.clone()
    if rank == 0:
        dist.send(message, dst=1)
    elif rank == 1:
        dist.recv(message, src=0)
    found["send-recv"] = message if rank < 2 else empty(0)
    return {name: numbers.tolist() for name, numbers in found.items()}


def test_the_blocks_are_those_of_torch():
    by_rank = launch.run(by_torch, ranks=RANKS)
    assert set(by_rank[0]) == set(OPERATIONS)
    for operation in OPERATIONS:
        after = exchange(operation, RANKS).after
        for rank, row in enumerate(after):
            assert by_rank[rank][operation] == [block.number for block in row], operation


@every("operation", OPERATIONS)
@every("ranks", [2, 3, 8])
def test_nothing_comes_from_nowhere(operation, ranks):
    """Each summand of what is there afterwards was on its own rank before."""
    result = exchange(operation, ranks)
    assert len(result.before) == len(result.after) == ranks
    for row in result.after:
        for block in row:
            for rank in block.summands:
                held = [(one.part, one.summands) for one in result.before[rank]]
                assert (block.part, (rank,)) in held


REFUSED = [(lambda: exchange("allreduce", 3), "operation 'allreduce' is not one of")]
RESULTS = [exchange("reduce", 3), exchange("reduce-scatter", 4)]
RECORDS = {"Block": [RESULTS[0].after[0][0], RESULTS[1].after[2][0]], "Exchange": RESULTS}
