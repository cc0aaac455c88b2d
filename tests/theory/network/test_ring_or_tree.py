"""Ring against tree: by hand, against the closed form of all-reduce, and at the crossover."""

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from probes import SLOW_LINK, Probe, by_name

from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.theory.network.collectives import TREES
from course_lib.theory.network.ring_or_tree import ring_or_tree

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
@given(ranks=st.integers(1, 4096), latency=st.floats(0, 1e-3))
def test_the_crossover_of_all_reduce_is_the_theorys(tree, ranks, latency):
    link = Link("any", 1e9, latency)
    part = collectives.TREE_EFFICIENCY if tree == "double-tree" else 1.0
    expected = (
        collectives.crossover_bytes(
            "all-reduce", ranks, Link("link", 1000000000.0, latency), tree=tree, efficiency=part
        )
        if ranks > 1
        else 0
    )
    found = ring_or_tree("all-reduce", 1000000.0, ranks, link, tree=tree).crossover_bytes
    assert found == pytest.approx(expected)


@every("tree", TREES)
@every("operation", ["all-reduce", "broadcast", "reduce"])
@given(ranks=st.integers(4, 1000))
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


def test_an_operation_without_a_tree():
    result = ring_or_tree("all-gather", 1e6, 8, LINK)
    assert (result.tree_s, result.crossover_bytes, result.tree_steps) == (None, None, None)
    assert (result.faster, result.seconds) == ("ring", result.ring_s)
    assert len(result.explain().splitlines()) == 2


def test_one_rank_sends_nothing():
    result = ring_or_tree("all-reduce", 1e6, 1, LINK)
    assert (result.seconds, result.crossover_bytes, result.bus_bytes_per_s) == (0, 0, 0)
    assert result.half_bytes == float("inf")


def test_explain_names_both_terms():
    text = ring_or_tree("all-reduce", 2**30, 8, LINK).explain()
    assert "14 steps · α = 47.6 µs" in text and "1.00 GiB on 8 ranks" in text
    assert text.endswith("faster below 2.75 MiB")


CALLS = (
    {"operation": "all-reduce", "size_bytes": 1e6, "ranks": 8, "link": SLOW_LINK},
    {
        "operation": "broadcast",
        "size_bytes": 2e6,
        "ranks": 16,
        "link": LINK,
        "tree": "double-tree",
    },
)
REFUSED = [
    (lambda: ring_or_tree("all-reduce", -1, 2, LINK), "size_bytes must be at least 0"),
    (lambda: ring_or_tree("all-reduce", 1, 0, LINK), "ranks must be at least 1"),
    (lambda: ring_or_tree("all-gather", 1, 2, LINK, tree="ring"), "tree 'ring' is not one of"),
    (lambda: ring_or_tree("allreduce", 1, 2, LINK), "did you mean 'all-reduce'"),
]
PROBES = by_name(
    Probe(ring_or_tree, *CALLS),
)
RECORDS = {"RingOrTree": [ring_or_tree(**call) for call in CALLS]}
