"""The table of nccl-tests: its bus bandwidth is that of the theory."""

import pytest

from course_lib.clinic.nccl_table import nccl_table
from course_lib.clinic.recorded import output
from course_lib.theory.network.collectives import bus_bandwidth


@pytest.mark.parametrize(
    ("name", "operation", "ranks", "wrong"),  # ranks: of them some headings say nothing
    [
        ("all_reduce_perf", "all-reduce", 2, 0),
        ("all_reduce_perf_ranks", "all-reduce", 2, 0),
        ("all_reduce_perf_small", "all-reduce", 8, 0),
        ("all_reduce_perf_nvls", "all-reduce", 8, 0),
        # Run with `-c 0`, so that nothing was checked.
        ("all_reduce_perf_two_nodes", "all-reduce", 16, None),
        ("all_reduce_perf_two_nodes_ring", "all-reduce", 16, None),
        ("all_gather_perf", "all-gather", 2, 0),
    ],
)
def test_busbw_is_the_theorys(name, operation, ranks, wrong):
    table = nccl_table(output(name).text)
    assert table.rows and table.ranks == (ranks if " Rank " in output(name).text else 0)
    for row in table.rows:
        bus = bus_bandwidth(operation, row.size_bytes, ranks, row.time_s)
        # Printed with two digits after the point, in GB/s, from a time with four digits.
        assert row.bus_bytes_per_s == pytest.approx(bus, rel=0.001, abs=0.006e9)
        assert row.algorithm_bytes_per_s == pytest.approx(
            row.size_bytes / row.time_s, rel=0.001, abs=0.006e9
        )
        assert row.wrong == wrong


def test_an_old_table_without_root():
    (row,) = nccl_table("8 2 float sum 42.56 1.00 2.00 4e-07 41.0 1.0 2.0 4e-07\n").rows
    assert row.time_s == pytest.approx(42.56e-6) and row.wrong is None


@pytest.mark.parametrize("line", ["1024 256 float", "8 2 float sum -1 fast 0 0 0 1 0 0 0"])
def test_a_broken_row_is_shown(line):
    with pytest.raises(ValueError, match="is expected: look at that line"):
        nccl_table(line)
