"""NCCL's choice on eight GPUs of one server: by what it logged, and by what was measured."""

import pytest
from every import every
from probes import Probe, by_name

from course_lib.clinic.nccl_table import nccl_table
from course_lib.clinic.recorded import output
from course_lib.theory.network.collectives import bus_bandwidth
from course_lib.theory.network.nccl_times import RANKS, nccl_choice, nccl_ways

MIB = 2**20


@every(
    ("mib", "name"),
    [
        (1 / 32, "Ring, LL"),
        (1, "Ring, LL"),
        (2, "NVLS, Simple"),
        (16 * 1024, "NVLS, Simple"),
    ],
)
def test_it_chooses_as_nccl_logged_on_eight_h200(mib, name):
    # Bekman, Machine Learning Engineering, network/README.md, SHARP: 32 KiB to 16 GiB, NCCL 2.27.7.
    # The NVLink of an H200 is that of an H100.
    assert nccl_choice(mib * MIB).name == name


def test_what_it_expects_of_large_tensors_was_measured():
    # The same page, 16 GiB: bus bandwidths by default and with NCCL_NVLS_ENABLE=0.
    ways = {way.name: way for way in nccl_ways()}
    for name, measured in {"NVLS, Simple": 482.26e9, "Ring, Simple": 367.61e9}.items():
        expected = ways[name].seconds(16 * 1024 * MIB)
        bus = bus_bandwidth("all-reduce", 16 * 1024 * MIB, RANKS, expected)
        assert bus == pytest.approx(measured, rel=0.03)


def test_a_recorded_table_of_eight_h100_is_met():
    for row in nccl_table(output("all_reduce_perf_nvls").text).rows:
        assert nccl_choice(row.size_bytes).seconds(row.size_bytes) == pytest.approx(
            row.time_s, rel=0.16
        )


def test_no_tree_is_the_fastest():
    assert {nccl_choice(2**power).algorithm for power in range(40)} == {"Ring", "NVLS"}


REFUSED = [
    (lambda: nccl_choice(-1), "size_bytes must be at least 0"),
]
PROBES = by_name(
    Probe(nccl_ways, {}, {}),
    Probe(nccl_ways()[0].seconds, {"size_bytes": 1e3}, {"size_bytes": 1e6}),
    Probe(nccl_choice, {"size_bytes": 1e3}, {"size_bytes": 1e9}),
)
RECORDS = {"NcclWay": list(nccl_ways())}
