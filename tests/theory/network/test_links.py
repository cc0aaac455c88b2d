"""Links as a group of ranks sees them."""

import probes
import pytest
from probes import Probe, by_name

from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import Link, accelerator
from course_lib.theory.network.links import group_link

INSIDE, BETWEEN = Link("inside", 400e9, 2e-6), Link("between", 50e9, 10e-6)
CLUSTER = Cluster(accelerator("H100-SXM"), nodes=4, inside=INSIDE, between=BETWEEN)


def test_a_group_within_a_node_has_the_inner_link():
    assert group_link(CLUSTER, "all-reduce", 8) == INSIDE
    assert group_link(CLUSTER, "all-reduce", 2, stride=4) == INSIDE
    assert group_link(CLUSTER, "all-reduce", 1, stride=8) == INSIDE


def test_rings_over_nodes_use_a_port_for_each_member():
    # 32 ranks, 8 in each of 4 nodes: 8 ports of 50 GB/s are as fast as the inner link.
    wide = group_link(CLUSTER, "all-reduce", 32)
    assert wide.bytes_per_s == 400e9
    # 3 of 31 hops cross the network.
    assert wide.latency_s == pytest.approx((28 * 2e-6 + 3 * 10e-6) / 31)
    two = group_link(CLUSTER, "all-gather", 8, stride=4)
    assert two.bytes_per_s == 100e9
    assert two.latency_s == pytest.approx((4 * 2e-6 + 3 * 10e-6) / 7)
    assert group_link(CLUSTER, "all-reduce", 4, stride=8) == BETWEEN


def test_a_ring_is_never_faster_than_its_inner_link():
    slow = Cluster(accelerator("H100-SXM"), nodes=4, inside=Link("slow", 60e9), between=BETWEEN)
    assert group_link(slow, "all-reduce", 32).bytes_per_s == 60e9


def test_all_to_all_leaves_the_node_with_most_bytes():
    link = group_link(CLUSTER, "all-to-all", 32)
    # 24 of the 31 other ranks are behind the port.
    assert link.bytes_per_s == pytest.approx(50e9 * 31 / 24)
    assert group_link(CLUSTER, "all-to-all", 4, stride=8).bytes_per_s == 50e9


def test_one_message_has_one_port():
    assert group_link(CLUSTER, "send-recv", 32) == BETWEEN


REFUSED = [
    (lambda: group_link(CLUSTER, "ring", 2), "operation 'ring'"),
    (lambda: group_link(CLUSTER, "all-reduce", 64), "group 64"),
]
PROBES = by_name(
    Probe(
        group_link,
        {"cluster": probes.CLUSTER, "operation": "all-to-all", "ranks": 16},
        {"cluster": probes.SLOW, "operation": "all-reduce", "ranks": 4, "stride": 2},
        see=lambda link: (link.bytes_per_s, link.latency_s),
    ),
)
