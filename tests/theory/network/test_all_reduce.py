"""Who sends how much: against the formulas, and what each rank sends in truth."""

import pytest
from every import every
from probes import SLOW_LINK
from refused import rows

from course_lib.clinic.nccl_table import nccl_table
from course_lib.clinic.recorded import output
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.theory.network.all_reduce import (
    RANKS,
    Way,
    all_reduce_ways,
    nccl_choice,
    nccl_ways,
    ring_or_tree,
)
from course_lib.theory.network.collectives import TREES, bus_bandwidth, sent_bytes


def test_what_the_busiest_ranks_send():
    """`stories/test_messages.py` has ring and tree message by message."""
    ways = all_reduce_ways(8)
    assert [way.most for way in ways.values()] == [7, 3, 1.75, 1.125]
    assert sum(ways["one rank adds"].sent.values()) == 8 * sent_bytes("all-reduce", 1, 8)
    assert ways["one rank adds"].busiest == (0,)
    assert ways["ring"].busiest == tuple(range(8))


# --- ring or tree ---

LINK = Link("test", 450e9, 3.4e-6)


def test_eight_ranks_by_hand():
    """14 steps and 1.75 times the size by the ring, 6 steps and 6 times the size by the tree."""
    result = ring_or_tree("all-reduce", 1e9, 8, LINK)
    assert result.ring_s == pytest.approx(14 * 3.4e-6 + 1.75e9 / 450e9)
    assert result.tree_s == pytest.approx(6 * 3.4e-6 + 6e9 / 450e9)
    assert (result.ring_steps, result.tree_steps) == (14, 6)
    # 8 steps saved for 4.25 times the size.
    assert result.crossover_bytes == pytest.approx(8 * 3.4e-6 * 450e9 / 4.25)
    assert (result.faster, result.seconds) == ("ring", result.ring_s)
    assert ring_or_tree("all-reduce", 1e3, 8, LINK).faster == "tree"


@every("tree", TREES)
@every("operation", ["all-reduce", "broadcast", "reduce"])
@every("ranks", [4, 5, 8, 1000])
def test_both_take_as_long_at_the_crossover(operation, tree, ranks):
    size = ring_or_tree(operation, 1, ranks, LINK, tree=tree).crossover_bytes
    equal = ring_or_tree(operation, size, ranks, LINK, tree=tree)
    assert equal.ring_s == pytest.approx(equal.tree_s)
    assert ring_or_tree(operation, size / 2, ranks, LINK, tree=tree).faster == "tree"
    assert ring_or_tree(operation, size * 2, ranks, LINK, tree=tree).faster == "ring"


@every("operation", collectives.OPERATIONS)
def test_half_of_the_time_at_half_bytes(operation):
    half = ring_or_tree(operation, 1, 8, LINK).half_bytes
    result = ring_or_tree(operation, half, 8, LINK)
    assert result.ring_latency_s == pytest.approx(result.ring_s / 2)
    assert result.bus_bytes_per_s == pytest.approx(LINK.bytes_per_s / 2)


def test_without_a_tree_and_with_nobody_to_send_to():
    result = ring_or_tree("all-gather", 1e6, 8, LINK)
    assert (result.tree_s, result.crossover_bytes, result.tree_steps) == (None, None, None)
    assert (result.faster, result.seconds) == ("ring", result.ring_s)
    alone = ring_or_tree("all-reduce", 1e6, 1, LINK)
    assert (alone.seconds, alone.crossover_bytes, alone.bus_bytes_per_s) == (0, 0, 0)
    assert alone.half_bytes == float("inf")


CALLS = (
    {"operation": "all-reduce", "size_bytes": 1e6, "ranks": 8, "link": SLOW_LINK},
    {"operation": "broadcast", "size_bytes": 2e6, "ranks": 16, "link": LINK, "tree": "double-tree"},
)


# --- nccl times ---

MIB = 2**20


@every(
    ("mib", "name"),
    [(1 / 32, "Ring, LL"), (1, "Ring, LL"), (2, "NVLS, Simple"), (16 * 1024, "NVLS, Simple")],
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


REFUSED = [*rows(all_reduce_ways, [1, 65], "ranks must be at")]
RECORDS = {
    "Way": [Way(2, {(0, 1): 1.0}), all_reduce_ways(3)["ring"]],
    "RingOrTree": [ring_or_tree(**call) for call in CALLS],
    "NcclWay": list(nccl_ways()),
}
