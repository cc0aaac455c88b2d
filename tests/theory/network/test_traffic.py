"""Communication policies: what each setting changes, and what is refused."""

from dataclasses import replace

import probes
import pytest
from probes import DENSE, MIXTURE, ZERO_3, Probe, by_name, values

from course_lib.theory.inputs.hardware import Cluster, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.traffic import Collective, CommunicationPolicy, Traffic, group_link


def seen(policy):
    """Times of layouts that differ in how they send."""
    tensor = Layout(tp=2, sequence_parallel=True)
    layouts = Layout(dp=4, accumulation=2), replace(ZERO_3, accumulation=2), tensor
    jobs = [Job(DENSE, layout=layout, cluster=probes.CLUSTER, sequence=512) for layout in layouts]
    experts = Layout(dp=8, ep=8, tp=2)
    jobs.append(Job(MIXTURE, layout=experts, cluster=probes.CLUSTER, sequence=512))
    return [step_traffic(job, policy=policy).seconds for job in jobs]


REFUSED = [
    (lambda: CommunicationPolicy(bucket_bytes=0), "bucket_bytes must be at least 1"),
    (lambda: CommunicationPolicy(token_nodes=0), "token_nodes must be at least 1"),
    (lambda: CommunicationPolicy(algorithm="star"), "algorithm 'star' is not one of"),
]
PROBES = by_name(
    Probe(
        CommunicationPolicy,
        {},
        {"bucket_bytes": 10**6, "algorithm": "tree", "token_nodes": 1},
        see=seen,
    ),
)


# --- links ---


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


REFUSED_LINKS = [
    (lambda: group_link(CLUSTER, "ring", 2), "operation 'ring'"),
    (lambda: group_link(CLUSTER, "all-reduce", 64), "group 64"),
]
PROBES_LINKS = by_name(
    Probe(
        group_link,
        {"cluster": probes.CLUSTER, "operation": "all-to-all", "ranks": 16},
        {"cluster": probes.SLOW, "operation": "all-reduce", "ranks": 4, "stride": 2},
        see=lambda link: (link.bytes_per_s, link.latency_s),
    ),
)


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
REFUSED_TRAFFIC = [
    (lambda: Collective("zp", "", "all-reduce", 1, 1, 2, INSIDE), "axis 'zp'"),
    (lambda: Collective("dp", "", "all-reduce", -1, 1, 2, INSIDE), "count"),
    (lambda: Collective("dp", "", "all-reduce", 1, -1, 2, INSIDE), "size_bytes"),
    (
        lambda: Collective("dp", "", "broadcast", 1, 1, 2, INSIDE, alone=2),
        "alone must be",
    ),
    (lambda: Collective("dp", "", "all-reduce", 1, 1, 0, INSIDE), "ranks"),
    (lambda: Collective("dp", "", "all-reduce", 1, 1, 2, INSIDE, "star"), "algorithm 'star'"),
    (lambda: Traffic((), {"dp": float("nan")}), r"overlap\['dp'\] must be finite"),
]
PROBES_TRAFFIC = by_name(
    Probe(
        Collective,
        values(ENTRY),
        {
            "axis": "tp",
            "what": "activations",
            "operation": "broadcast",
            "count": 3,
            "size_bytes": 2e6,
            "ranks": 4,
            "link": BETWEEN,
            "algorithm": "tree",
            "kind": "gradients",
            "place": "ends",
            "hidden": True,
            "alone": 1,
        },
        see=lambda entry: (
            entry.waited_s,
            entry.hideable_s,
            entry.axis,
            entry.what,
            entry.kind,
            entry.place,
        ),
    ),
    Probe(
        Traffic,
        {"collectives": (ENTRY,)},
        {"collectives": (ENTRY, ENTRY), "overlap": {"dp": 0.5}},
        see=lambda sent: sent.exposed_seconds,
    ),
    Probe(Traffic((ENTRY,)).explain, {}, {"unit": "GiB"}),
)


PROBES |= PROBES_LINKS
PROBES |= PROBES_TRAFFIC
REFUSED += REFUSED_LINKS
REFUSED += REFUSED_TRAFFIC
