"""More nodes than one: by hand, at its ends, and by what was measured on two nodes."""

import json

import pytest
from probes import Probe, by_name

from course_lib import recorded
from course_lib.chapters.ch16_cluster_clinic.scaling import MoreNodes
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives


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
    (lambda: MoreNodes(1.0, 1.0, nodes=1), "nodes must be at least 2"),
    (lambda: MoreNodes(0.0, 1.0), "compute_s"),
]
PROBES = by_name(
    Probe(
        MoreNodes,
        {"compute_s": 1.0, "exchange_s": 0.5},
        {
            "compute_s": 2.0,
            "exchange_s": 0.6,
            "exchange_one_s": 0.1,
            "nodes": 3,
            "same_batch": False,
        },
        see=lambda more: more.speedup,
    ),
)
