"""Bytes, steps and messages against collectives that are carried out message by message."""

from math import ceil, inf, log2

import pytest
from every import every
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.theory.network.collectives import OPERATIONS, crossover_bytes, seconds

RANKS = st.integers(1, 9)


# --- second source: the algorithms themselves, on lists -------------------------------------------


class Wire:
    """Counts what every rank sends."""

    def __init__(self, ranks):
        self.sent, self.messages, self.steps = [0] * ranks, 0, 0

    def send(self, rank, elements):
        self.sent[rank] += elements
        self.messages += 1


def ring_all_reduce(rows):
    """Reduce-scatter, then all-gather, on a ring; `rows[rank]` has one element for each rank."""
    n, wire = len(rows), Wire(len(rows))
    rows = [list(row) for row in rows]
    for gather in (False, True):
        for step in range(n - 1):
            wire.steps += 1
            moves = [(rank, (rank - step + gather) % n) for rank in range(n)]
            values = [(rank, piece, rows[rank][piece]) for rank, piece in moves]
            for rank, piece, value in values:
                wire.send(rank, 1)
                target = rows[(rank + 1) % n]
                target[piece] = value if gather else target[piece] + value
    return rows, wire


def tree_all_reduce(values):
    """Up and down a binomial tree, each rank one whole value."""
    n, wire = len(values), Wire(len(values))
    values, levels = list(values), ceil(log2(len(values))) if len(values) > 1 else 0
    for level in range(levels):
        wire.steps += 1
        for rank in range(2**level, n, 2 ** (level + 1)):
            wire.send(rank, 1)
            values[rank - 2**level] += values[rank]
    for level in reversed(range(levels)):
        wire.steps += 1
        for rank in range(2**level, n, 2 ** (level + 1)):
            wire.send(rank - 2**level, 1)
            values[rank] = values[rank - 2**level]
    return values, wire


@given(n=RANKS, seed=st.integers(0, 99))
@settings(deadline=None)
def test_ring_all_reduce_sends_what_the_formula_says(n, seed):
    rows = [[(seed + 7 * rank + 3 * piece) % 11 for piece in range(n)] for rank in range(n)]
    result, wire = ring_all_reduce(rows)
    assert result == [[sum(column) for column in zip(*rows, strict=True)]] * n
    predicted = collectives.sent_bytes("all-reduce", n, n)
    assert wire.sent == pytest.approx([predicted] * n)
    assert wire.steps == collectives.steps("all-reduce", n)
    assert wire.messages == collectives.messages("all-reduce", n)


@given(n=RANKS)
def test_tree_all_reduce_sends_what_the_formula_says(n):
    result, wire = tree_all_reduce(range(n))
    assert result == [sum(range(n))] * n
    assert sum(wire.sent) / n == pytest.approx(collectives.sent_bytes("all-reduce", 1, n))
    assert wire.steps == collectives.steps("all-reduce", n, "tree")
    assert wire.messages == collectives.messages("all-reduce", n, "tree")


@given(n=RANKS)
def test_all_to_all_keeps_one_piece_at_home(n):
    sent = [sum(1 for other in range(n) if other != rank) for rank in range(n)]
    assert sent == pytest.approx([collectives.sent_bytes("all-to-all", n, n)] * n)
    assert sum(sent) == collectives.messages("all-to-all", n)


@every("operation", OPERATIONS)
def test_one_rank_sends_nothing(operation):
    assert collectives.sent_bytes(operation, 100, 1) == 0
    assert collectives.steps(operation, 1) == collectives.messages(operation, 1) == 0
    assert seconds(operation, 100, 1, Link("link", 1.0, 1.0)) == 0


def test_steps_and_messages_by_hand():
    assert [collectives.steps(name, 8) for name in OPERATIONS] == [14, 7, 7, 7, 7, 7, 1]
    assert [collectives.messages(name, 8) for name in OPERATIONS] == [112, 56, 56, 56, 7, 7, 1]
    assert collectives.steps("all-reduce", 9, "tree") == 8
    assert collectives.messages("broadcast", 8, "double-tree") == 14


# --- time -----------------------------------------------------------------------------------------


def test_time_is_latency_and_bandwidth():
    # 14 steps of 5 us, and 1.75 GB at 50 GB/s.
    assert seconds(
        "all-reduce", 1000000000.0, 8, Link("link", 50000000000.0, 5e-06)
    ) == pytest.approx(70e-6 + 35e-3)
    assert seconds(
        "all-reduce", 1000000000.0, 8, Link("link", 50000000000.0, 5e-06), algorithm="double-tree"
    ) == pytest.approx(30e-6 + 35e-3)
    # The plain tree sends the whole tensor 2 x 3 times, one after the other.
    assert seconds(
        "all-reduce", 1000000000.0, 8, Link("link", 50000000000.0, 5e-06), algorithm="tree"
    ) == pytest.approx(30e-6 + 120e-3)


@given(
    n=st.integers(3, 4096),
    latency=st.floats(1e-7, 1e-3),
    bandwidth=st.floats(1e6, 1e12),
    tree=st.sampled_from(["tree", "double-tree"]),
    efficiency=st.floats(0.1, 0.99),
)
def test_ring_and_tree_take_as_long_at_the_crossover(n, latency, bandwidth, tree, efficiency):
    size = crossover_bytes(
        "all-reduce", n, Link("link", bandwidth, latency), tree=tree, efficiency=efficiency
    )
    if size == 0:
        assert collectives.steps("all-reduce", n) == collectives.steps("all-reduce", n, tree)
        return

    def gap(factor):
        slow = seconds(
            "all-reduce",
            factor * size,
            n,
            Link("link", bandwidth * efficiency, latency),
            algorithm=tree,
        )
        return slow / seconds("all-reduce", factor * size, n, Link("link", bandwidth, latency))

    assert gap(1) == pytest.approx(1)
    assert gap(0.5) < 1 < gap(2)


def test_crossover_of_equal_bandwidths_never_comes():
    assert (
        crossover_bytes("all-reduce", 64, Link("link", 50000000000.0, 5e-06), efficiency=1.0) == inf
    )
    assert crossover_bytes("all-reduce", 2, Link("link", 50000000000.0, 5e-06)) == 0


@every("operation", OPERATIONS)
@given(n=st.integers(2, 512), size=st.floats(1, 1e12), bandwidth=st.floats(1, 1e13))
def test_bus_bandwidth_is_the_links(operation, n, size, bandwidth):
    """What nccl-tests reports for an ideal collective is the bandwidth of the link."""
    time_s = seconds(operation, size, n, Link("link", bandwidth))
    assert collectives.bus_bandwidth(operation, size, n, time_s) == pytest.approx(bandwidth)


# --- volumes and reach ----------------------------------------------------------------------------


def test_tensor_parallel_bytes_are_four_all_reduces():
    # 8 b s h (t-1)/t elements of 2 bytes with b 2, s 1024, h 512, t 4.
    expected = 8 * 2 * 1024 * 512 * 3 / 4 * 2
    assert collectives.tensor_parallel_bytes(2, 1024, 512, 4) == expected
    assert collectives.tensor_parallel_bytes(2, 1024, 512, 4, element_bytes=4) == 2 * expected
    assert collectives.tensor_parallel_bytes(2, 1024, 512, 1) == 0


def test_layer_intensity_is_work_over_bytes():
    b, s, h, t = 2, 1024, 512, 4
    flops = 6 * 12 * h * h * b * s / t
    sent = collectives.tensor_parallel_bytes(b, s, h, t)
    assert collectives.layer_intensity(h, t) == pytest.approx(flops / sent)
    assert collectives.layer_intensity(h, t) == pytest.approx(4.5 * h / (t - 1))
    assert collectives.layer_intensity(h, t, element_bytes=4) == pytest.approx(2.25 * h / (t - 1))
    more = collectives.layer_intensity(h, t, layer_parameters=24 * h * h)
    assert more == pytest.approx(9 * h / (t - 1))
    assert collectives.layer_intensity(h, 1) == inf


@given(
    hidden=st.integers(64, 65536),
    peak=st.floats(1e12, 1e16),
    bandwidth=st.floats(1e9, 1e12),
    element_bytes=st.sampled_from([2, 4]),
)
def test_reach_is_the_last_t_that_is_fast_enough(hidden, peak, bandwidth, element_bytes):
    ridge = collectives.ridge(peak, bandwidth)
    reach = collectives.layer_tp_reach(hidden, peak, bandwidth, element_bytes=element_bytes)
    assert collectives.layer_intensity(hidden, reach, element_bytes) >= ridge * (1 - 1e-9)
    assert collectives.layer_intensity(hidden, reach + 1, element_bytes) < ridge * (1 + 1e-9)
    real = collectives.matrix_tp_reach(hidden, peak, bandwidth, element_bytes)
    assert collectives.matrix_intensity(hidden, real, element_bytes) == pytest.approx(ridge)


REFUSED = [
    (lambda: collectives.steps("all-gather", 2, "tree"), "'tree' does not do all-gather"),
    (lambda: crossover_bytes("all-reduce", 2, Link("link", 1, 1), tree="ring"), "tree 'ring' is"),
    (lambda: collectives.zero_volume(1, 4), "zero_stage must be at most 3"),
]
