"""Rings, tree and pairwise exchange against sums and copies made in one process."""

import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.scratch.collectives import (
    Peers,
    all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)

ROWS = (0, 1, 7, 24)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


def of_rank(rank, shape, dtype):
    """Whole numbers, whose sum over eight ranks is exact in every dtype here."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 16, shape, generator=generator).to(dtype)


def everyone(ranks, shape, dtype):
    return [of_rank(rank, shape, dtype) for rank in range(ranks)]


def same(ours, expected, what):
    assert ours.dtype == expected.dtype and ours.shape == expected.shape, what
    assert torch.equal(ours, expected), what


def check_all(shape, dtype, peers):
    """Every operation on tensors of this shape; each tensor must stay as it was."""
    whole = everyone(peers.ranks, shape, dtype)
    mine = whole[peers.rank].clone()
    total = sum(whole[1:], whole[0].clone())
    for reduce in (ring_all_reduce, tree_all_reduce):
        same(reduce(mine, peers), total, (reduce.__name__, shape, dtype))
    if shape:
        part = ring_reduce_scatter(mine, peers)
        same(part, total.tensor_split(peers.ranks)[peers.rank], ("scatter", shape, dtype))
        same(ring_all_gather(part, peers, rows=shape[0]), total, ("gather", shape, dtype))
        gathered = torch.cat(whole)
        same(ring_all_gather(mine, peers), gathered, ("even gather", shape, dtype))
        to_me = [one.tensor_split(peers.ranks)[peers.rank] for one in whole]
        same(all_to_all(mine, peers), torch.cat(to_me), ("all-to-all", shape, dtype))
    same(mine, whole[peers.rank], "the argument")


def check_groups(ranks):
    launch.init()
    # One process of eight serves all numbers of ranks: groups of the first n, and one without them.
    for members in (*(list(range(n)) for n in range(1, ranks + 1)), [1, 3, 6]):
        group, n = dist.new_group(members), len(members)
        if dist.get_rank() in members:
            for rows in ROWS:
                check_all((rows,), torch.float32, Peers(group))
            for shape in ((), (2 * n, 3), (5, 2, 2)):
                check_all(shape, torch.float64, Peers(group))
            for dtype in DTYPES if n == 3 else ():
                check_all((13,), dtype, Peers(group))
    return True


def test_every_operation_is_exact_on_one_to_eight_ranks_and_for_all_sizes():
    assert all(launch.run(check_groups, 8, ranks=8))
