"""What one slow rank or link costs all, and when more nodes are slower than one."""

import json
import random
from dataclasses import replace

import pytest

from course_lib import recorded
from course_lib.chapters.ch16_cluster_clinic.slowest import (
    MoreNodes,
    OneSlowLink,
    expected_slowest_s,
    shared_work_factor,
    straggler_factor,
)
from course_lib.theory.inputs.hardware import HDR, Link
from course_lib.theory.network import collectives


def test_one_slow_rank_of_64_costs_everybody_all_of_it():
    times = [1.0] * 63 + [1.1]
    assert straggler_factor(0.1) == max(times)
    # Half of the step is computing: half of the loss.
    assert straggler_factor(0.1, compute_share=0.5) == pytest.approx(1.05)
    rate = sum(1 / time for time in times)
    assert shared_work_factor(64, 0.1) == pytest.approx(64 / rate)
    assert shared_work_factor(64, 0.1) == pytest.approx(1.0014, abs=1e-4)


# David and Nagaraja 2003, table of expected normal order statistics; 1 / sqrt(pi) for two.
@pytest.mark.parametrize(
    ("ranks", "deviations"),
    [(1, 0), (2, 0.56419), (3, 0.84628), (5, 1.16296), (10, 1.53875), (50, 2.24907)],
)
def test_the_largest_of_normal_times_is_that_of_the_table(ranks, deviations):
    assert expected_slowest_s(ranks, 1.0, 0.1) == pytest.approx(1 + 0.1 * deviations, abs=1e-5)


@pytest.mark.parametrize(("ranks", "draws"), [(8, 20_000), (64, 4000), (1024, 300)])
def test_the_largest_of_drawn_times(ranks, draws):
    pick = random.Random(ranks)
    mean = sum(max(pick.gauss(0.5, 0.02) for _ in range(ranks)) for _ in range(draws)) / draws
    assert expected_slowest_s(ranks, 0.5, 0.02) == pytest.approx(mean, abs=0.0015)


def test_it_grows_slowly_with_a_million_ranks():
    slowest = [expected_slowest_s(10**power, 1.0, 0.02) for power in range(10)]
    assert slowest == sorted(slowest) and slowest[-1] < 1.13


# 4 GB on 64 ranks over 200 Gb/s; one port runs at 50 Gb/s.
MORNING = OneSlowLink(4e9, 64, HDR, slow_bytes_per_s=50e9 / 8)


def test_yesterday_and_today():
    assert MORNING.healthy_s == pytest.approx(0.32, abs=0.005)
    assert MORNING.slow_s == pytest.approx(1.26, abs=0.005)
    assert MORNING.factor == pytest.approx(4, rel=0.01)
    assert MORNING.healthy_bus_bytes_per_s == pytest.approx(25e9, rel=0.01)
    assert MORNING.slow_bus_bytes_per_s == pytest.approx(6.25e9, rel=0.01)
    assert MORNING.without_s is None


def test_eight_rings_lose_as_much_and_seven_hardly_anything():
    eight = replace(MORNING, rings=8)
    assert eight.factor == pytest.approx(4, rel=0.05)
    assert eight.slow_bus_bytes_per_s == pytest.approx(8 * 6.25e9, rel=0.01)
    assert eight.without_s / eight.healthy_s == pytest.approx(8 / 7, rel=0.01)


def test_a_faster_link_helps_nobody():
    assert replace(MORNING, slow_bytes_per_s=100e9).factor == 1


def simulated(ranks, rates, size, latency_s):
    """A ring, step by step: rank r sends to r + 1 what it got before, when its link is free."""
    ready = [0.0] * ranks
    piece_s = [latency_s + size / ranks / rate for rate in rates]
    for _ in range(2 * (ranks - 1)):
        sent = [ready[rank] + piece_s[rank] for rank in range(ranks)]
        # The next step needs the piece from the left, and the own link free again.
        ready = [max(sent[rank], sent[rank - 1]) for rank in range(ranks)]
    return max(ready)


@pytest.mark.parametrize("slow", [1e9, 10e9, 25e9])
@pytest.mark.parametrize("ranks", [2, 5, 64])
def test_against_a_ring_step_by_step(ranks, slow):
    link = Link("test", 25e9, 5e-6)
    rates = [25e9] * (ranks - 1) + [slow]
    predicted = OneSlowLink(4e9, ranks, link, slow)
    assert simulated(ranks, [25e9] * ranks, 4e9, 5e-6) == pytest.approx(predicted.healthy_s)
    assert simulated(ranks, rates, 4e9, 5e-6) == pytest.approx(predicted.slow_s)


def test_strong_scaling_by_hand():
    """2 s of computing; 1.5 s of exchange on two nodes, 0.1 s on one: 2.5 s instead of 2.1."""
    both = MoreNodes(2.0, 1.5, 0.1)
    assert (both.one_s, both.many_s) == (2.1, 2.5)
    assert both.speedup == pytest.approx(2.1 / 2.5)
    assert both.break_even_compute_s == pytest.approx(2.8)
    assert both.break_even_batches == pytest.approx(1.4)


@pytest.mark.parametrize("nodes", [2, 3, 16])
@pytest.mark.parametrize("same_batch", [True, False])
def test_at_break_even_nothing_is_gained(nodes, same_batch):
    more = MoreNodes(0.1, 2.0, 0.05, nodes, same_batch)
    even = MoreNodes(more.break_even_compute_s, 2.0, 0.05, nodes, same_batch)
    assert even.speedup == pytest.approx(1)
    assert even.break_even_batches == pytest.approx(1)


@pytest.mark.parametrize("same_batch", [True, False])
def test_without_exchange_n_nodes_are_n_times_as_fast(same_batch):
    free = MoreNodes(1.0, 0.0, nodes=8, same_batch=same_batch)
    assert free.speedup == pytest.approx(8)
    assert free.break_even_compute_s == 0


def test_what_was_measured_on_two_nodes():
    """Updates over 200 and 50 Mbit/s, from that of one node and the bytes of the gradients."""
    measured = json.loads(recorded("two_nodes_seconds"))
    for mbit in (200, 50):
        link = Link("wire", mbit * 1e6 / 8, 0.0)
        exchange_s = collectives.seconds("all-reduce", measured["gradient_bytes"], 2, link)
        for batches in ("", ", 8 micro-batches"):
            more = MoreNodes(measured[f"1 node{batches}"], exchange_s, same_batch=False)
            found = measured[f"2 nodes, {mbit} Mbit/s{batches}"]
            assert found == pytest.approx(more.many_s, rel=0.3)


REFUSED = [
    (lambda: straggler_factor(-0.1), "slower must be at least 0"),
    (lambda: straggler_factor(0.1, 1.5), "compute_share must be at most 1"),
    (lambda: shared_work_factor(0, 0.1), "ranks must be at least 1"),
    (lambda: expected_slowest_s(4, 1.0, 0.5), "more than a third of mean_s"),
    (lambda: expected_slowest_s(4, -1.0, 0.0), "mean_s must be at least 0"),
    (lambda: replace(MORNING, ranks=1), "ranks must be at least 2"),
    (lambda: replace(MORNING, size_bytes=0), "size_bytes must be above 0"),
    (lambda: replace(MORNING, slow_bytes_per_s=0), "slow_bytes_per_s must be above 0"),
    (lambda: replace(MORNING, rings=0), "rings must be at least 1"),
    (lambda: MoreNodes(1.0, 1.0, nodes=1), "nodes must be at least 2"),
    (lambda: MoreNodes(0.0, 1.0), "compute_s"),
]
