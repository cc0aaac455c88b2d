"""Rings, tree and pairwise exchange against sums and copies made in one process."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.measure.times import collective_seconds
from course_lib.measure.wire import log_wire
from course_lib.scratch import wire
from course_lib.scratch.collectives import (
    Peers,
    SlowPeers,
    all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives

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


def check_shapes(ranks):
    launch.init()
    # One process of eight serves all numbers of ranks: groups of the first n.
    for n in range(1, ranks + 1):
        group = dist.new_group(list(range(n)))
        if dist.get_rank() < n:
            for rows in ROWS:
                check_all((rows,), torch.float32, Peers(group))
            for shape in ((), (2 * n, 3), (5, 2, 2)):
                check_all(shape, torch.float64, Peers(group))
    return True


def test_every_operation_is_exact_on_one_to_eight_ranks_and_for_all_sizes():
    assert all(launch.run(check_shapes, 8, ranks=8))


def check_dtypes():
    launch.init()
    for dtype in DTYPES:
        check_all((13,), dtype, Peers())
    return True


def test_every_dtype():
    assert all(launch.run(check_dtypes, ranks=3))


def check_a_group_of_others():
    """Numbers inside a group are not those of the world."""
    launch.init()
    group = dist.new_group([1, 3])
    if dist.get_rank() in (1, 3):
        check_all((7,), torch.float32, Peers(group))
    return True


def test_a_group_that_leaves_out_rank_0():
    assert all(launch.run(check_a_group_of_others, ranks=4))


def beside_the_library():
    rank = launch.init()
    torch.manual_seed(rank.rank)
    x = torch.randn(8 * rank.world, 5, dtype=torch.float64)
    strided = torch.randn(5, 4 * rank.world, dtype=torch.float64).t()  # not contiguous
    peers, gaps = Peers(), []
    for whole in (x, strided):
        swapped = torch.empty_like(whole.contiguous())
        dist.all_to_all_single(swapped, whole.contiguous())
        gaps += [
            ring_all_reduce(whole, peers) - wire.all_reduce(whole.contiguous()),
            tree_all_reduce(whole, peers) - wire.all_reduce(whole.contiguous()),
            ring_reduce_scatter(whole, peers) - wire.reduce_scatter(whole),
            ring_all_gather(whole, peers) - wire.all_gather(whole),
            all_to_all(whole, peers) - swapped,
        ]
    return [float(gap.abs().max()) for gap in gaps], ring_all_reduce(x, peers)


@pytest.mark.parametrize("ranks", [2, 4])
def test_equal_to_the_library_and_the_same_bits_on_every_rank(ranks):
    results = launch.run(beside_the_library, ranks=ranks)
    for gaps, total in results:
        assert max(gaps) < 1e-14
        assert torch.equal(total, results[0][1])


NAMES = {
    "all-reduce": (ring_all_reduce, "ring"),
    "tree": (tree_all_reduce, "tree"),
    "reduce-scatter": (ring_reduce_scatter, "ring"),
    "all-gather": (ring_all_gather, "ring"),
    "all-to-all": (all_to_all, "ring"),
}


def counted(calls):
    """For each (name, elements): this rank's rounds, messages and bytes."""
    launch.init()
    found = []
    for name, elements in calls:
        operation, peers = NAMES[name][0], Peers()
        with log_wire() as log:
            operation(torch.ones(elements), peers)
        found.append((peers.rounds, *log.sent().get("send-recv", [0, 0])))
    return found


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_steps_messages_and_bytes_are_the_theory_s(ranks):
    elements = 4 * ranks
    # All-gather's argument is one part of the tensor that is counted.
    calls = [(name, elements // ranks if name == "all-gather" else elements) for name in NAMES]
    by_rank = launch.run(counted, calls, ranks=ranks)
    for (name, _), found in zip(calls, zip(*by_rank, strict=True), strict=True):
        operation, algorithm = ("all-reduce" if name == "tree" else name), NAMES[name][1]
        rounds, messages, sent = zip(*found, strict=True)
        assert max(rounds) == collectives.steps(operation, ranks, algorithm)
        assert sum(messages) == collectives.messages(operation, ranks, algorithm)
        expected = collectives.sent_bytes(operation, 4 * elements, ranks)
        assert sum(sent) == ranks * expected
        if algorithm == "ring":
            assert set(sent) == {expected}


def test_an_uneven_ring_sends_as_many_bytes_in_all_and_no_empty_messages():
    sizes = (0, 2, 5, 101)
    by_rank = launch.run(counted, [("all-reduce", elements) for elements in sizes], ranks=4)
    for elements, found in zip(sizes, zip(*by_rank, strict=True), strict=True):
        _, messages, sent = zip(*found, strict=True)
        assert sum(sent) == 4 * collectives.sent_bytes("all-reduce", 4 * elements, 4)
        assert sum(messages) == 2 * 3 * min(elements, 4)
        parts = [4 * len(part) for part in torch.ones(elements).tensor_split(4)]
        # While adding, a rank sends all parts but its own; while copying, all but the next one.
        for rank, size in enumerate(sent):
            assert size == 2 * sum(parts) - parts[rank] - parts[(rank + 1) % 4]


def slow_seconds(links, elements):
    """Seconds of every operation behind each of these links."""
    launch.init()
    x, times = torch.ones(elements), {}
    for link in links:
        peers = SlowPeers(*link)
        for name, (operation, _) in NAMES.items():
            call = partial(operation, x, peers)
            times[link, name] = collective_seconds(call, 1, x.device)
    return times


def test_a_slow_link_takes_the_time_of_the_model():
    # Some 60 ms a step: far more than a busy machine adds to it.
    links, ranks, elements = [(0.25e6, 0.0), (1e12, 0.06)], 4, 2**14
    times = launch.run(slow_seconds, links, elements, ranks=ranks)[0]
    for ((bytes_per_s, latency_s), name), measured in times.items():
        operation = "all-reduce" if name == "tree" else name
        size = 4 * elements * (ranks if name == "all-gather" else 1)
        link = Link("slow", bytes_per_s, latency_s)
        expected = collectives.seconds(operation, size, ranks, link, algorithm=NAMES[name][1])
        ratio = measured / expected
        assert 0.98 < ratio < 1.9, (bytes_per_s, latency_s, name)
