"""Communication policies: what each setting changes, and what is refused."""

import probes
import pytest
from probes import Probe, by_name, values

from course_lib.theory.inputs.hardware import Cluster, Link, accelerator
from course_lib.theory.network.traffic import Collective, Traffic, group_link

# --- links ---


INSIDE, BETWEEN = Link("inside", 400e9, 2e-6), Link("between", 50e9, 10e-6)
CLUSTER = Cluster(accelerator("H100-SXM"), nodes=4, inside=INSIDE, between=BETWEEN)


def test_a_group_within_a_node_has_the_inner_link_and_one_message_one_port():
    for ranks, stride in ((8, 1), (2, 4), (1, 8)):
        assert group_link(CLUSTER, "all-reduce", ranks, stride=stride) == INSIDE
    assert group_link(CLUSTER, "send-recv", 32) == BETWEEN


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


def test_all_to_all_leaves_the_node_with_most_bytes():
    link = group_link(CLUSTER, "all-to-all", 32)
    # 24 of the 31 other ranks are behind the port.
    assert link.bytes_per_s == pytest.approx(50e9 * 31 / 24)
    assert group_link(CLUSTER, "all-to-all", 4, stride=8).bytes_per_s == 50e9


# --- traffic ---


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
    assert traffic.total_bytes == 12.14e9
    tp, dp = 10 * (14 * 2e-6 + 14e6 / 400e9), 2 * (3 * 10e-6 + 6e9 / 50e9)
    assert traffic.exposed_by_axis == pytest.approx({"tp": tp, "dp": dp / 2})
    assert traffic.seconds == pytest.approx(tp + dp)
    assert traffic.exposed_seconds == pytest.approx(tp + dp / 2)
    text = traffic.explain()
    assert "10 x all-reduce" in text and "12.14 GB sent per GPU" in text
    # Half of dp's 0.24 s hides; nothing of tp's 0.6 ms does.
    assert text.splitlines()[-1] == (
        "total 12.14 GB sent per GPU, 0.2407 s, of which 0.1200 s hidden"
    )
    assert "GiB" in traffic.explain("GiB")


ENTRY = Collective("dp", "gradients", "all-reduce", 2, 1e6, 8, INSIDE)


REFUSED = [(lambda: group_link(CLUSTER, "all-reduce", 64), "group 64")]
PROBES = by_name(
    Probe(
        group_link,
        {"cluster": probes.CLUSTER, "operation": "all-to-all", "ranks": 16},
        see=lambda link: (link.bytes_per_s, link.latency_s),
    ),
    Probe(
        Collective,
        values(ENTRY),
        {"kind": "gradients"},
        see=lambda entry: (entry, entry.waited_s, entry.hideable_s),
    ),
    Probe(
        Traffic,
        {"collectives": (ENTRY,)},
        {"overlap": {"dp": 0.5}},
        see=lambda sent: sent.exposed_seconds,
    ),
)
