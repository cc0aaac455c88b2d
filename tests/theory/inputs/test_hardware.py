"""Accelerators and clusters: data sheets against each other, links against an enumeration."""

import dataclasses
import itertools

import pytest

from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import ACCELERATORS, Accelerator, Link, accelerator

H100 = ACCELERATORS["H100-SXM"]
SLOW = Link("slow", 1e9, 1e-3)
CHIP = Accelerator("chip", 1e12, 10**9, 1e10, inside=Link("fast", 1e10), between=SLOW)


@pytest.mark.parametrize(
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
    peak = hardware.tensor_core_peak(clock_hz, fma_per_clock, tensor_cores)
    assert ACCELERATORS[name].peak_flop_per_s == pytest.approx(peak, rel=1e-3)


def test_a100_s_memory_bandwidth_follows_from_its_bus():
    # 5120 bits, two transfers a clock of 1593 MHz.
    bandwidth = 5120 / 8 * 2 * 1593e6
    assert ACCELERATORS["A100-SXM-80GB"].memory_bytes_per_s == pytest.approx(bandwidth, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "links", "gb_per_s_each_way"),
    # NVLink: 12, 18 and 18 links of 25, 25 and 50 GB/s each way; xGMI: 7 of 64.
    [("A100-SXM-80GB", 12, 25), ("H100-SXM", 18, 25), ("B200-SXM", 18, 50), ("MI300X", 7, 64)],
)
def test_links_are_counted_one_way(name, links, gb_per_s_each_way):
    assert ACCELERATORS[name].inside.bytes_per_s == links * gb_per_s_each_way * 1e9


def test_pcie_4_follows_from_its_lanes():
    # 16 lanes, 16 GT/s, 128b/130b coding.
    lanes = 16 * 16e9 * 128 / 130 / 8
    assert ACCELERATORS["RTX4090"].inside.bytes_per_s == pytest.approx(lanes, rel=1e-3)


def test_measured_matmuls_are_below_the_peak():
    assert H100.peak_flop_per_s * H100.matmul_efficiency == pytest.approx(794.5e12)
    a100 = ACCELERATORS["A100-SXM-80GB"]
    assert a100.peak_flop_per_s * a100.matmul_efficiency == pytest.approx(271.2e12)


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
    sizes = (2, 3, 5, 2)
    for place in range(4):
        changed = [size * (1 + (place == i)) for i, size in enumerate(sizes)]
        assert hardware.matmul_intensity(*changed) != hardware.matmul_intensity(*sizes)


@pytest.mark.parametrize("nodes", [1, 2, 3])
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Link("x", 0), "bytes_per_s must be above 0"),
        (lambda: Link("x", float("inf")), "bytes_per_s must be finite"),
        (lambda: Link("x", 1, -1), "latency_s must be at least 0"),
        (lambda: dataclasses.replace(CHIP, peak_flop_per_s=-1), "peak_flop_per_s must be above"),
        (lambda: dataclasses.replace(CHIP, memory_bytes=1.5), "memory_bytes must be a whole"),
        (lambda: dataclasses.replace(CHIP, memory_bytes_per_s=0), "memory_bytes_per_s must be"),
        (lambda: dataclasses.replace(CHIP, matmul_efficiency=80), "give a fraction, 0.8 for 80 %"),
        (lambda: Cluster(CHIP, matmul_efficiency=1.2), "matmul_efficiency must be at most 1"),
        (lambda: Cluster(CHIP, nodes=0), "nodes must be at least 1"),
        (lambda: Cluster(CHIP, gpus_per_node=0), "gpus_per_node must be at least 1"),
        (lambda: Cluster(CHIP, gpu_hour_usd=-2), "gpu_hour_usd must be at least 0"),
        (lambda: Cluster(ACCELERATORS["RTX4090"], nodes=2), r"give between=Link\(...\)"),
        (lambda: Cluster(CHIP).link(16), "group 16 with stride 1 needs 16 accelerators"),
        (lambda: Cluster(CHIP).link(2, stride=0), "stride must be at least 1"),
        (lambda: accelerator("H100"), "did you mean 'H100-SXM'"),
        (lambda: hardware.tensor_core_peak(0, 1, 1), "clock_hz must be above 0"),
        (lambda: hardware.tensor_core_peak(1, 0, 1), "fma_per_clock must be at least 1"),
        (lambda: hardware.tensor_core_peak(1, 1, 0), "tensor_cores must be at least 1"),
        (lambda: hardware.ridge(0, 1), "flop_per_s must be above 0"),
        (lambda: hardware.ridge(1, 0), "bytes_per_s must be above 0"),
        (lambda: hardware.matmul_intensity(1, 0, 1), "inner must be at least 1"),
        (lambda: CHIP.attainable_flop_per_s(-1), "flop_per_byte must be at least 0"),
    ],
)
def test_bad_input_is_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call()
