"""Clusters: their links against an enumeration, and what they take from their accelerator."""

import dataclasses
import itertools

import probes
import pytest
from every import every
from probes import Probe, by_name
from test_hardware import CHIP, H100, SLOW

from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import ACCELERATORS, Link
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.step.step_time import step_time


@every("nodes", [1, 2, 3])
def test_link_is_the_slowest_that_any_group_crosses(nodes):
    cluster = Cluster(CHIP, nodes=nodes, gpus_per_node=4)
    for group, stride in itertools.product(range(2, 13), range(1, 13)):
        if cluster.world % (group * stride):
            continue
        starts = (
            base + offset
            for base in range(0, cluster.world, group * stride)
            for offset in range(stride)
        )
        crosses = any(
            len({(start + i * stride) // 4 for i in range(group)}) > 1 for start in starts
        )
        assert cluster.link(group, stride) == (CHIP.between if crosses else CHIP.inside)


def test_a_group_of_one_needs_no_network():
    assert Cluster(CHIP, nodes=4).link(1, stride=16) == CHIP.inside


@every(
    "change",
    [
        {"accelerator": H100},
        {"nodes": 3},
        {"gpus_per_node": 4},
        {"inside": SLOW},
        {"between": Link("other", 2e9)},
        {"matmul_efficiency": 0.5},
        {"gpu_hour_usd": 3.0},
    ],
)
def test_each_part_of_a_cluster_shows(change):
    base = {"accelerator": CHIP, "nodes": 2}
    assert Cluster(**base).explain() != Cluster(**{**base, **change}).explain()


def test_a_cluster_takes_its_accelerator_s_values():
    cluster = Cluster(H100, nodes=2048)
    assert cluster.world == 16384
    assert (cluster.inside, cluster.between) == (H100.inside, H100.between)
    assert cluster.matmul_flop_per_s == pytest.approx(794.5e12)
    half = dataclasses.replace(cluster, matmul_efficiency=0.5)
    assert half.matmul_flop_per_s == pytest.approx(494.7e12)


def seen(cluster):
    """Size, links of a small and of a large group, rate, and the price of a step."""
    step = step_time(Job(probes.DENSE, layout=Layout(dp=8), cluster=cluster, sequence=512))
    links = cluster.link(2).bytes_per_s, cluster.link(cluster.world).bytes_per_s
    return cluster.world, links, cluster.matmul_flop_per_s, step.cost_usd(1e9)


REFUSED = [
    (lambda: Cluster(CHIP, matmul_efficiency=1.2), "matmul_efficiency must be at most 1"),
    (lambda: Cluster(CHIP, nodes=0), "nodes must be at least 1"),
    (lambda: Cluster(CHIP, gpus_per_node=0), "gpus_per_node must be at least 1"),
    (lambda: Cluster(CHIP, gpu_hour_usd=-2), "gpu_hour_usd must be at least 0"),
    (lambda: Cluster(ACCELERATORS["RTX4090"], nodes=2), r"give between=Link\(...\)"),
    (lambda: Cluster(CHIP).link(16), "group 16 with stride 1 needs 16 accelerators"),
    (lambda: Cluster(CHIP).link(2, stride=0), "stride must be at least 1"),
]
PROBES = by_name(
    Probe(
        Cluster,
        {"accelerator": H100, "nodes": 2},
        {
            "accelerator": ACCELERATORS["A100-SXM-80GB"],
            "nodes": 4,
            "gpus_per_node": 16,
            "inside": SLOW,
            "between": SLOW,
            "matmul_efficiency": 0.5,
            "gpu_hour_usd": 3.0,
        },
        see=seen,
    ),
    Probe(Cluster(H100, nodes=4).link, {"group": 4, "stride": 1}, {"group": 16, "stride": 8}),
)
