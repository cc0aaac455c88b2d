"""One slow link in a ring: against a simulation step by step, and the numbers of a bad morning."""

from dataclasses import replace

import pytest
from probes import Probe, by_name

from course_lib.chapters.ch16_cluster_clinic.one_slow_link import OneSlowLink
from course_lib.theory.inputs.hardware import HDR, NDR, Link

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


REFUSED = [
    (lambda: replace(MORNING, ranks=1), "ranks must be at least 2"),
    (lambda: replace(MORNING, size_bytes=0), "size_bytes must be above 0"),
    (lambda: replace(MORNING, slow_bytes_per_s=0), "slow_bytes_per_s must be above 0"),
    (lambda: replace(MORNING, rings=0), "rings must be at least 1"),
]
PROBES = by_name(
    Probe(
        OneSlowLink,
        {"size_bytes": 4e9, "ranks": 64, "link": HDR, "slow_bytes_per_s": 6.25e9},
        {"size_bytes": 8e9, "ranks": 8, "link": NDR, "slow_bytes_per_s": 12.5e9, "rings": 8},
        see=lambda one: (one.slow_s, one.healthy_s),
    ),
)
