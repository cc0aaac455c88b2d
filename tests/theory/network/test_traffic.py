"""Exchanges and buckets of DDP, links of groups, totals of traffic, gains.

The demo's test compares the buckets with real all-reduces, test_traffic the counts of a step.
"""

import pytest

from course_lib.theory.compute import budget
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import Link, accelerator
from course_lib.theory.inputs.units import MIB
from course_lib.theory.network.buckets import ddp_all_reduces, ddp_buckets, gradient_syncs
from course_lib.theory.network.links import group_link
from course_lib.theory.network.traffic import Collective, Traffic

INSIDE, BETWEEN = Link("inside", 400e9, 2e-6), Link("between", 50e9, 10e-6)
CLUSTER = Cluster(accelerator("H100-SXM"), nodes=4, inside=INSIDE, between=BETWEEN)


def test_no_sync_exchanges_once_per_window():
    assert gradient_syncs(320, 32, no_sync=False) == 320
    assert gradient_syncs(320, 32, no_sync=True) == 10
    assert gradient_syncs(321, 32, no_sync=True) == 11


def test_the_first_bucket_is_small():
    buckets = ddp_buckets([MIB // 2] * 60)
    assert buckets == [MIB, 25 * MIB, 4 * MIB]


def test_a_bucket_closes_once_its_limit_is_reached():
    assert ddp_buckets([30 * MIB, 1], cap_bytes=25 * MIB) == [30 * MIB, 1]
    assert ddp_buckets([4, 4, 4], cap_bytes=4, first_bytes=100) == [4, 4, 4]
    assert ddp_buckets([]) == []


def test_the_first_exchange_has_one_bucket():
    assert ddp_all_reduces(syncs=10, buckets=3) == 1 + 9 * 3


# --- links of groups ------------------------------------------------------------------------------


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


# --- entries and totals ---------------------------------------------------------------------------


def test_an_entry_multiplies_its_calls():
    entry = Collective("dp", "gradients", "all-reduce", 3, 8e9, 8, INSIDE)
    assert entry.sent_bytes == 14e9
    assert entry.total_bytes == 42e9
    assert entry.seconds == pytest.approx(3 * (14 * 2e-6 + 14e9 / 400e9))
    tree = Collective("dp", "gradients", "all-reduce", 3, 8e9, 8, INSIDE, "double-tree")
    assert tree.seconds == pytest.approx(3 * (6 * 2e-6 + 14e9 / 400e9))
    # Only reductions and broadcasts have trees; others go round the ring all the same.
    gather = Collective("dp", "parameters", "all-gather", 1, 8e9, 8, INSIDE, "double-tree")
    assert gather.seconds == pytest.approx(7 * 2e-6 + 7e9 / 400e9)


def test_totals_by_axis_and_link():
    traffic = Traffic(
        (
            Collective("tp", "MLP", "all-reduce", 10, 8e6, 8, INSIDE),
            Collective("dp", "gradients", "reduce-scatter", 1, 8e9, 4, BETWEEN),
            Collective("dp", "parameters", "all-gather", 1, 8e9, 4, BETWEEN),
        ),
        {"dp": 0.5},
    )
    assert traffic.bytes_by_axis == {"tp": 140e6, "dp": 12e9}
    assert traffic.bytes_by_link == {"inside": 140e6, "between": 12e9}
    assert traffic.total_bytes == 12.14e9
    tp, dp = 10 * (14 * 2e-6 + 14e6 / 400e9), 2 * (3 * 10e-6 + 6e9 / 50e9)
    assert traffic.seconds_by_axis == pytest.approx({"tp": tp, "dp": dp})
    assert traffic.exposed_by_axis == pytest.approx({"tp": tp, "dp": dp / 2})
    assert traffic.seconds == pytest.approx(tp + dp)
    assert traffic.exposed_seconds == pytest.approx(tp + dp / 2)
    text = traffic.explain()
    assert "10 x all-reduce" in text and "12.14 GB sent per GPU" in text
    assert "GiB" in traffic.explain("GiB")


def test_gains():
    assert budget.saved_fraction(10.0, 8.0) == pytest.approx(0.2)
    assert budget.throughput_gain(10.0, 8.0) == pytest.approx(0.25)
    assert budget.saved_fraction(8.0, 10.0) == -0.25


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: gradient_syncs(0, 1, True), "micro_steps"),
        (lambda: gradient_syncs(1, 0, True), "accumulation"),
        (lambda: gradient_syncs(1, 1, "yes"), "no_sync"),
        (lambda: ddp_buckets([4, 0]), r"gradient_bytes\[1\]"),
        (lambda: ddp_buckets([4], cap_bytes=0), "cap_bytes"),
        (lambda: ddp_buckets([4], first_bytes=-1), "first_bytes"),
        (lambda: ddp_all_reduces(0, 1), "syncs"),
        (lambda: ddp_all_reduces(1, 0), "buckets"),
        (lambda: group_link(CLUSTER, "ring", 2), "operation 'ring'"),
        (lambda: group_link(CLUSTER, "all-reduce", 64), "group 64"),
        (lambda: Collective("zp", "", "all-reduce", 1, 1, 2, INSIDE), "axis 'zp'"),
        (lambda: Collective("dp", "", "all-reduce", -1, 1, 2, INSIDE), "count"),
        (lambda: Collective("dp", "", "all-reduce", 1, -1, 2, INSIDE), "size_bytes"),
        (lambda: Collective("dp", "", "all-reduce", 1, 1, 0, INSIDE), "ranks"),
        (lambda: Collective("dp", "", "all-reduce", 1, 1, 2, INSIDE, "star"), "algorithm 'star'"),
        (lambda: Traffic((), {"dp": float("nan")}), r"overlap\['dp'\] must be finite"),
        (lambda: budget.saved_fraction(0, 1), "before_s"),
        (lambda: budget.throughput_gain(1, 0), "after_s"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=name):
        call()
