"""Accelerators and links: data sheets against each other."""

import dataclasses
import itertools

import probes
import pytest
from every import every
from probes import DENSE, GUESS, PLAIN, Probe, by_name, values

from course_lib.theory import planner
from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.hardware import ACCELERATORS, PCIE4, Accelerator, Cluster, Link
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.step.stage import attention_rate, layer_rate
from course_lib.theory.step.step_time import step_time

H100 = ACCELERATORS["H100-SXM"]
SLOW = Link("slow", 1e9, 1e-3)
CHIP = Accelerator("chip", 1e12, 10**9, 1e10, inside=Link("fast", 1e10), between=SLOW)


@every(
    ("name", "clock_hz", "fma_per_clock", "tensor_cores"),
    [
        # Bekman, Machine Learning Engineering, compute/accelerator; NVIDIA Ada whitepaper, app. A.
        ("A100-SXM-80GB", 1.410e9, 256, 432),
        ("H100-SXM", 1.830e9, 512, 528),
        ("H200-SXM", 1.830e9, 512, 528),
        ("RTX4090", 2.520e9, 64, 512),
    ],
)
def test_peaks_follow_from_clock_and_cores(name, clock_hz, fma_per_clock, tensor_cores):
    peak = clock_hz * fma_per_clock * 2 * tensor_cores
    assert ACCELERATORS[name].peak_flop_per_s == pytest.approx(peak, rel=1e-3)


def test_roofline_bends_at_the_ridge():
    ridge = CHIP.ridge_flop_per_byte
    assert ridge == hardware.ridge(1e12, 1e10) == 100
    assert CHIP.attainable_flop_per_s(ridge / 2) == CHIP.peak_flop_per_s / 2
    assert CHIP.attainable_flop_per_s(ridge) == CHIP.attainable_flop_per_s(2 * ridge) == 1e12


def test_intensity_of_a_matmul():
    # A square one of n does 2n³ FLOP on 3n² numbers: n/3 FLOP a byte in 16 bits.
    assert hardware.matmul_intensity(4096, 4096, 4096) == pytest.approx(4096 / 3)
    # A matrix times a vector reads every weight for one multiply-add: 1 FLOP a byte.
    assert hardware.matmul_intensity(4096, 4096, 1) == pytest.approx(1, rel=1e-3)
    assert hardware.matmul_intensity(8, 8, 8, element_bytes=4) == pytest.approx(8 / 6)


# Once more from the data sheets: GB of memory, of 10^9 (a driver gives 85 of 80 GiB); GB/s of the
# memory; GB/s of the link inside a node, one way.
SHEETS = {
    "A100-SXM-80GB": (85, 2039, 300),
    "A100-SXM-40GB": (40, 1555, 300),
    "H100-SXM": (85, 3350, 450),
    "H800-SXM": (85, 3350, 200),
    "H100-SXM-500W": (96, 2400, 450),
    "H200-SXM": (141, 4800, 450),
    "B200-SXM": (180, 8000, 900),
    "RTX4090": (24, 1008, 31.5),
    "L40S": (48, 864, 31.5),
    "MI300X": (192, 5300, 7 * 64),
    "TPUv5p": (95, 2765, 90),
}


def test_memories_and_links_are_those_of_the_data_sheets():
    for name, chip in ACCELERATORS.items():
        rates = chip.memory_bytes_per_s / 1e9, chip.inside.bytes_per_s / 1e9
        assert (round(chip.memory_bytes / 1e9), *rates) == SHEETS[name]


@every(("inner", "columns"), [(4096, 14_336), (7168, 2048), (8192, 8192)])
def test_at_the_ridge_s_rows_the_intensity_is_the_ridge(inner, columns):
    rows = hardware.ridge_rows(inner, columns, H100.ridge_flop_per_byte)
    below, above = (
        hardware.matmul_intensity(count, inner, columns) for count in (int(rows), int(rows) + 1)
    )
    assert below <= H100.ridge_flop_per_byte <= above


def seen(chip):
    """Name, ridge, and the memory, rate and links of a cluster of such chips."""
    cluster = Cluster(chip, nodes=2)
    links = cluster.link(2).bytes_per_s, cluster.link(16).bytes_per_s
    fits = planner.plan(DENSE, PLAIN, cluster, 16, sequence=512).capacity_bytes
    name = chip.name, chip.element_bytes
    rates = layer_rate(cluster, GUESS), attention_rate(cluster, GUESS, PLAIN)
    rates += (chip.attention_share("new"),)
    return name, chip.ridge_flop_per_byte, fits, cluster.matmul_flop_per_s, links, rates


# --- cluster ---


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


def test_a_cluster_takes_its_accelerator_s_values():
    cluster = Cluster(H100, nodes=2048)
    assert cluster.world == 16384
    assert (cluster.inside, cluster.between) == (H100.inside, H100.between)
    assert cluster.matmul_flop_per_s == pytest.approx(794.5e12)
    half = dataclasses.replace(cluster, matmul_efficiency=0.5)
    assert half.matmul_flop_per_s == pytest.approx(494.7e12)


def cluster_seen(cluster):
    """Size, links of a small and of a large group, rate, and the price of a step."""
    step = step_time(Job(probes.DENSE, layout=Layout(dp=8), cluster=cluster, sequence=512))
    links = cluster.link(2).bytes_per_s, cluster.link(cluster.world).bytes_per_s
    return cluster.world, links, cluster.matmul_flop_per_s, step.cost_usd(1e9)


REFUSED = [
    (lambda: dataclasses.replace(CHIP, memory_bytes=80), "80 is less than 1 GB.* 80 \\* GIB"),
    (lambda: dataclasses.replace(CHIP, memory_bytes=10**9 - 1), "999,999,999 is less than 1 GB"),
    (lambda: dataclasses.replace(CHIP, matmul_efficiency=80), "give a fraction, 0.8 for 80 %"),
    (lambda: Cluster(ACCELERATORS["RTX4090"], nodes=2), r"give between=Link\(...\)"),
    (lambda: Cluster(CHIP).link(16), "group 16 with stride 1 needs 16 accelerators"),
]
PROBES = by_name(
    Probe(
        Accelerator,
        values(H100),
        {
            "name": "chip",
            "peak_flop_per_s": 1e15,
            "memory_bytes": 10**10,
            "memory_bytes_per_s": 1e12,
            "inside": PCIE4,
            "between": PCIE4,
            "matmul_efficiency": 0.5,
            "layer_efficiency": 0.5,
            "attention_efficiency": 0.5,
            "new_attention_efficiency": 0.45,
            "number_format": "fp32",
        },
        see=seen,
    ),
    Probe(
        Cluster,
        {"accelerator": H100, "nodes": 2},
        {"accelerator": ACCELERATORS["A100-SXM-80GB"], "inside": SLOW, "between": SLOW},
        see=cluster_seen,
    ),
    Probe(Cluster(H100, nodes=4).link, {"group": 4, "stride": 1}),
)
