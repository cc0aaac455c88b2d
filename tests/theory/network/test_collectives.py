"""Bytes, steps, messages and times by hand.

`stories/test_messages.py` has them against all-reduces that go message by message.
"""

from math import inf

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st

from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.theory.network.collectives import OPERATIONS, crossover_bytes, seconds

LINK = Link("link", 50e9, 5e-6)


@every("operation", OPERATIONS)
def test_one_rank_sends_nothing(operation):
    assert collectives.sent_bytes(operation, 100, 1) == 0
    assert collectives.steps(operation, 1) == collectives.messages(operation, 1) == 0
    assert seconds(operation, 100, 1, Link("link", 1.0, 1.0)) == 0


def test_bytes_steps_and_messages_by_hand():
    assert [collectives.sent_bytes(name, 8, 8) for name in OPERATIONS] == [14, 7, 7, 7, 8, 8, 8]
    assert [collectives.steps(name, 8) for name in OPERATIONS] == [14, 7, 7, 7, 7, 7, 1]
    assert [collectives.messages(name, 8) for name in OPERATIONS] == [112, 56, 56, 56, 7, 7, 1]
    assert collectives.steps("all-reduce", 9, "tree") == 8
    assert collectives.messages("broadcast", 8, "double-tree") == 14


# --- time -----------------------------------------------------------------------------------------


def test_time_is_latency_and_bandwidth():
    """14 steps of 5 µs and 1.75 GB at 50 GB/s; a plain tree sends the tensor 6 times in turn."""
    for algorithm, latency_s, sent_s in (
        ("ring", 70e-6, 35e-3),
        ("double-tree", 30e-6, 35e-3),
        ("tree", 30e-6, 120e-3),
    ):
        taken = seconds("all-reduce", 1e9, 8, LINK, algorithm=algorithm)
        assert taken == pytest.approx(latency_s + sent_s)


def test_crossover_by_hand():
    """8 steps of 5 µs saved for 1.75 times the size more; `test_all_reduce.py` has the times."""
    half = crossover_bytes("all-reduce", 8, LINK, efficiency=0.5)
    assert half == pytest.approx(8 * 5e-6 * 50e9 / 1.75)
    assert crossover_bytes("all-reduce", 64, LINK, efficiency=1.0) == inf
    assert crossover_bytes("all-reduce", 2, LINK) == 0


@every("operation", OPERATIONS)
@every("ranks", [2, 8, 511])
def test_bus_bandwidth_is_the_links(operation, ranks):
    """What nccl-tests reports for an ideal collective is the bandwidth of the link."""
    time_s = seconds(operation, 1e6, ranks, Link("link", 5e9))
    assert collectives.bus_bandwidth(operation, 1e6, ranks, time_s) == pytest.approx(5e9)


# --- volumes and reach ----------------------------------------------------------------------------


def test_layer_intensity_is_work_over_bytes():
    """Of 8 b s h (t-1)/t elements of 2 bytes."""
    b, s, h, t = 2, 1024, 512, 4
    sent = collectives.tensor_parallel_bytes(b, s, h, t)
    assert sent == 8 * b * s * h * 3 / 4 * 2
    assert collectives.tensor_parallel_bytes(b, s, h, t, element_bytes=4) == 2 * sent
    intensity = collectives.layer_intensity(h, t)
    assert intensity == pytest.approx(6 * 12 * h * h * b * s / t / sent)
    assert collectives.layer_intensity(h, t, element_bytes=4) == pytest.approx(intensity / 2)
    more = collectives.layer_intensity(h, t, layer_parameters=24 * h * h)
    assert more == pytest.approx(2 * intensity)
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
]
