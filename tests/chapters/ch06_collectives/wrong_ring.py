"""Rings that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch

from course_lib.scratch.collectives import ring_all_gather, ring_reduce_scatter
from tests.checking.builds.patches import versions


def scatter(whole, peers):
    """Right."""
    n, rank = peers.ranks, peers.rank
    parts = whole.clone().tensor_split(n)
    for step in range(1, n):
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        arrived = torch.empty_like(into)
        peers.swap(out, rank + 1, arrived, rank - 1)
        into += arrived
    return parts[rank].clone()


def gather(shard, peers, rows=None):
    """Right."""
    n, rank = peers.ranks, peers.rank
    rows = n * len(shard) if rows is None else rows
    whole = shard.new_empty(rows, *shard.shape[1:])
    parts = whole.tensor_split(n)
    parts[rank].copy_(shard)
    for step in range(n - 1):
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        peers.swap(out, rank + 1, into, rank - 1)
    return whole


def _with(scatter=ring_reduce_scatter, gather=ring_all_gather):
    scatter.__name__, gather.__name__ = "ring_reduce_scatter", "ring_all_gather"
    return [scatter, gather]


_SCATTERS = """
    torch's own
    - parts = whole.clone().tensor_split(n)
    + total = whole.clone()
    + dist.all_reduce(total, group=peers.group)
    + return total.tensor_split(n)[rank]
    ? 1 calls torch's allreduce
    the mean
    - return parts[rank].clone()
    + return parts[rank] / n
    ? 1 1/2 of what is expected: the mean over ranks
    adds into its argument
    - whole.clone().tensor_split(n)
    + whole.tensor_split(n)
    ? 1 `whole` has changed
    directly
    - out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
    + out, into = parts[(rank + step) % n].clone(), parts[rank]
    - peers.swap(out, rank + 1, arrived, rank - 1)
    + peers.swap(out, rank + step, arrived, rank - step)
    ? 1 on 3 ranks, .*ranks further: in a ring
    in fp32
    - whole.clone().tensor_split(n)
    + whole.float().clone().tensor_split(n)
    ? 1 in bfloat16: the part is torch.float32
    among all ranks
    - n, rank = peers.ranks, peers.rank
    + n, rank = dist.get_world_size(), dist.get_rank()
    ? 2 in a group without rank 1
    stops a step early
    - range(1, n)
    + range(1, n - 1)
    ? 1 nothing was added
    waits for a message first
    - peers.swap(out, rank + 1, arrived, rank - 1)
    + peers.receive(arrived, rank - 1)
    + peers.send(out, rank + 1)
    ? nothing moves.*rank 0 waits for a message from rank 1
    cuts by chunk
    - .tensor_split(n)
    + .chunk(n)
    ? 2 raised IndexError.*of your code
    sends all of it
    - parts = whole.clone().tensor_split(n)
    + total, parts = whole.clone(), [whole.clone() for _ in range(n)]
    - into += arrived
    + into.copy_(arrived)
    + total += arrived
    - return parts[rank].clone()
    + return total.tensor_split(n)[rank].clone()
    ? 1 sends more bytes
"""
_GATHERS = r"""
    needs rows
    - rows = n * len(shard) if rows is None else rows
    + rows = rows or len(shard)
    ? 3
    gathers tables
    - return whole
    + return whole.view(rows, shard.shape[1])
    ? 3 raised IndexError: shape \(3,\) in bfloat16
    empties its shard
    - return whole
    + shard.zero_()
    + return whole
    ? 3 `shard` has changed
    all parts are equal
    - parts = whole.tensor_split(n)
    - parts[rank].copy_(shard)
    + parts = list(shard.new_empty(n, *shard.shape))
    + parts[rank] = shard
    - return whole
    + return torch.cat(parts)
    ? 3 another number of bytes
"""
WRONG = [
    *versions(scatter, _with, _SCATTERS),
    *versions(gather, lambda wrong: _with(gather=wrong), _GATHERS),
]


def _by_lists(whole, peers):
    """Parts in a list, that travel from hand to hand; sums are new tensors."""
    n, rank = peers.ranks, peers.rank
    parts = list(whole.tensor_split(n))
    for step in range(n - 1):
        arrived = torch.empty_like(parts[(rank - step - 2) % n])
        peers.swap(parts[(rank - step - 1) % n].contiguous(), rank + 1, arrived, rank - 1)
        parts[(rank - step - 2) % n] = parts[(rank - step - 2) % n] + arrived
    return parts[rank]


def _backwards(shard, peers, rows=None):
    """Around the ring the other way."""
    n, rank = peers.ranks, peers.rank
    rows = n * shard.shape[0] if rows is None else rows
    sizes = [len(part) for part in torch.empty(rows).tensor_split(n)]
    parts = {rank: shard}
    for step in range(n - 1):
        coming = (rank + step + 1) % n
        parts[coming] = shard.new_empty(sizes[coming], *shard.shape[1:])
        peers.swap(parts[(rank + step) % n], rank - 1, parts[coming], rank + 1)
    return torch.cat([parts[place] for place in range(n)])


RIGHT = [("lists, and the other way round", _with(_by_lists, _backwards))]
