"""Rings that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch

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


def waits_for_the_next(whole, peers):
    """Everybody receives first, from the wrong side: nothing moves."""
    n, rank = peers.ranks, peers.rank
    parts = whole.clone().tensor_split(n)
    arrived = torch.empty_like(parts[0])
    peers.receive(arrived, rank - 1)
    peers.send(parts[0], rank + 1)
    return parts[rank]


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
    ("the mean", _with(mean), _BEFORE + "1/2 of what is expected: the mean over ranks"),
    ("adds into its argument", _with(changes_its_input), _BEFORE + "`whole` has changed"),
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
