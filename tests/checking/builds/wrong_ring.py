"""Rings that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
import torch.distributed as dist

from course_lib.scratch.collectives.ring import ring_all_gather, ring_reduce_scatter


def _scatter(whole, peers, mean=False, shift=0, to=1, source=-1, copies=True, last=0):
    """A reduce-scatter in which one thing can go wrong."""
    n, rank = peers.ranks, peers.rank
    parts = (whole.clone() if copies else whole).tensor_split(n)
    for step in range(1, n - last):
        out, into = parts[(rank - step + shift) % n], parts[(rank - step - 1 + shift) % n]
        arrived = torch.empty_like(into)
        peers.swap(out, rank + to, arrived, rank + source)
        into += arrived
    part = parts[rank].clone()
    return part / n if mean else part


def mean(whole, peers):
    return _scatter(whole, peers, mean=True)


def changes_its_input(whole, peers):
    return _scatter(whole, peers, copies=False)


def one_step_less(whole, peers):
    return _scatter(whole, peers, last=1)


def begins_with_its_own_part(whole, peers):
    return _scatter(whole, peers, shift=1)


def by_torch(whole, peers):
    total = whole.clone()
    dist.all_reduce(total, group=peers.group)
    return total.tensor_split(peers.ranks)[peers.rank]


def waits_for_the_next(whole, peers):
    """Everybody receives first, from the wrong side: nothing moves."""
    n, rank = peers.ranks, peers.rank
    parts = whole.clone().tensor_split(n)
    arrived = torch.empty_like(parts[0])
    peers.receive(arrived, rank - 1)
    peers.send(parts[0], rank + 1)
    return parts[rank]


def directly(whole, peers):
    """As many messages and bytes as a ring, but to every rank, from everywhere."""
    n, rank = peers.ranks, peers.rank
    parts = whole.tensor_split(n)
    total = parts[rank].clone()
    for step in range(1, n):
        arrived = torch.empty_like(total)
        peers.swap(parts[(rank + step) % n].clone(), rank + step, arrived, rank - step)
        total += arrived
    return total


def gathers_directly(shard, peers, rows=None):
    n, rank = peers.ranks, peers.rank
    rows = n * len(shard) if rows is None else rows
    whole = shard.new_empty(rows, *shard.shape[1:])
    parts = whole.tensor_split(n)
    parts[rank].copy_(shard)
    for step in range(1, n):
        peers.swap(shard, rank + step, parts[(rank - step) % n], rank - step)
    return whole


def in_fp32(whole, peers):
    """Buffers of their own dtype."""
    n, rank = peers.ranks, peers.rank
    parts = whole.float().clone().tensor_split(n)
    for step in range(1, n):
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        arrived = torch.empty(into.shape)
        peers.swap(out, rank + 1, arrived, rank - 1)
        into += arrived
    return parts[rank].clone()


def among_all(whole, peers):
    """Numbers of all ranks, also where a group is meant."""
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = whole.clone().tensor_split(n)
    for step in range(1, n):
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        arrived = torch.empty_like(into)
        peers.swap(out, rank + 1, arrived, rank - 1)
        into += arrived
    return parts[rank].clone()


def gathers_in_fp32(shard, peers, rows=None):
    return ring_all_gather(shard.float(), peers, rows)


def needs_rows(shard, peers, rows=None):
    n, rank = peers.ranks, peers.rank
    whole = shard.new_empty(rows or len(shard), *shard.shape[1:])
    parts = whole.tensor_split(n)
    parts[rank].copy_(shard)
    for step in range(n - 1):
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        peers.swap(out, rank + 1, into, rank - 1)
    return whole


def gathers_tables(shard, peers, rows=None):
    """Two dimensions, as in the first check."""
    rows = peers.ranks * len(shard) if rows is None else rows
    whole = ring_all_gather(shard, peers, rows)
    return whole.view(rows, shard.shape[1])


def in_place(shard, peers, rows=None):
    """The own part is where the others arrive."""
    whole = ring_all_gather(shard, peers, rows)
    shard.zero_()
    return whole


def chunks(whole, peers):
    """`chunk` makes fewer parts than ranks, and they are not those of tensor_split."""
    n, rank = peers.ranks, peers.rank
    parts = whole.clone().chunk(n)
    for step in range(1, n):
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        arrived = torch.empty_like(into)
        peers.swap(out, rank + 1, arrived, rank - 1)
        into += arrived
    return parts[rank].clone()


def sends_everything(whole, peers):
    """All to all: right, but (n-1) times the bytes."""
    total = whole.clone()
    out, into = whole.clone(), torch.empty_like(whole)
    for _ in range(peers.ranks - 1):
        peers.swap(out, peers.rank + 1, into, peers.rank - 1)
        total += into
        out = into.clone()
    return total.tensor_split(peers.ranks)[peers.rank].clone()


def gathers_equal_parts(shard, peers, rows=None):
    """Takes all parts to be as long as its own."""
    n, rank = peers.ranks, peers.rank
    parts = list(shard.new_empty(n, *shard.shape))
    parts[rank] = shard
    for step in range(n - 1):
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        peers.swap(out, rank + 1, into, rank - 1)
    return torch.cat(parts)


def gathers_in_order_of_arrival(shard, peers, rows=None):
    rows = peers.ranks * shard.shape[0] if rows is None else rows
    sizes = [len(part) for part in torch.empty(rows).tensor_split(peers.ranks)]
    arrived, out = [shard], shard
    for step in range(1, peers.ranks):
        into = shard.new_empty(sizes[(peers.rank - step) % peers.ranks], *shard.shape[1:])
        peers.swap(out, peers.rank + 1, into, peers.rank - 1)
        arrived.append(into)
        out = into
    return torch.cat(arrived)


def _with(scatter=ring_reduce_scatter, gather=ring_all_gather):
    scatter.__name__, gather.__name__ = "ring_reduce_scatter", "ring_all_gather"
    return [scatter, gather]


_BEFORE = "step 1 of 3.*"
WRONG = [
    ("torch's own", _with(by_torch), "step 1 of 3.*calls torch's allreduce"),
    ("the mean", _with(mean), _BEFORE + "1/2 of what is expected: the mean over ranks"),
    ("adds into its argument", _with(changes_its_input), _BEFORE + "`whole` has changed"),
    ("directly", _with(directly), _BEFORE + "on 3 ranks, .*ranks further: in a ring"),
    ("in fp32", _with(in_fp32), _BEFORE + "in bfloat16: the part is torch.float32"),
    ("among all ranks", _with(among_all), "step 2 of 3.*in a group without rank 1"),
    ("gathers directly", _with(gather=gathers_directly), "step 3 of 3.*ranks further: in a ring"),
    ("gathers in fp32", _with(gather=gathers_in_fp32), "step 3 of 3.*in bfloat16"),
    ("needs rows", _with(gather=needs_rows), "step 3 of 3"),
    (
        "gathers tables",
        _with(gather=gathers_tables),
        "step 3 of 3.*raised IndexError: 3 rows in bfloat16",
    ),
    ("empties its shard", _with(gather=in_place), "step 3 of 3.*`shard` has changed"),
    ("stops a step early", _with(one_step_less), _BEFORE + "nothing was added"),
    ("starts with its own part", _with(begins_with_its_own_part), _BEFORE + "nothing was added"),
    (
        "waits for a message first",
        _with(waits_for_the_next),
        "nothing moves.*rank 0 waits for a message from rank 1",
    ),
    ("cuts by chunk", _with(chunks), "step 2 of 3.*raised IndexError.*of your code"),
    ("sends all of it", _with(sends_everything), _BEFORE + "sends more bytes"),
    (
        "all parts are equal",
        _with(gather=gathers_equal_parts),
        "step 3 of 3.*another number of bytes",
    ),
    ("in order of arrival", _with(gather=gathers_in_order_of_arrival), "step 3 of 3.*differs in"),
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
