"""Slow ranks: against draws of random times, and a table of order statistics."""

import random

import pytest
from probes import Probe, by_name

from course_lib.chapters.ch16_cluster_clinic.stragglers import (
    expected_slowest_s,
    shared_work_factor,
    straggler_factor,
)


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


REFUSED = [
    (lambda: straggler_factor(-0.1), "slower must be at least 0"),
    (lambda: straggler_factor(0.1, 1.5), "compute_share must be at most 1"),
    (lambda: shared_work_factor(0, 0.1), "ranks must be at least 1"),
    (lambda: expected_slowest_s(4, 1.0, 0.5), "more than a third of mean_s"),
    (lambda: expected_slowest_s(4, -1.0, 0.0), "mean_s must be at least 0"),
]
PROBES = by_name(
    Probe(straggler_factor, {"slower": 0.1}, {"slower": 0.2, "compute_share": 0.5}),
    Probe(shared_work_factor, {"ranks": 8, "slower": 0.1}, {"ranks": 16, "slower": 0.2}),
    Probe(
        expected_slowest_s,
        {"ranks": 8, "mean_s": 1.0, "deviation_s": 0.1},
        {"ranks": 64, "mean_s": 2.0, "deviation_s": 0.2},
    ),
)
