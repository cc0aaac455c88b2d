"""The demo of context parallelism: equal, bytes as predicted, and what its options change."""

import pytest
from together import runs

from course_lib import demos

SMALL = {"model": "2x32x4", "steps": 3, "sequence": 24, "batch": 3}


@pytest.fixture(scope="module")
def two():
    cases = {"even": {}, "odd": {"sequence": 22, "zigzag": False}}
    return runs("context", cases, **SMALL)


def test_equal_to_one_process(two):
    results = {2: two["even"]}
    for ranks in (1, 4):
        results[ranks] = demos.run("context", ranks=ranks, stream=False, **SMALL)
    for ranks, result in results.items():
        check(result, ranks)


def check(result, ranks):
    """Beside what `main` proves."""
    assert [one.name for one in result.versions] == [
        "ring",
        "zig-zag ring",
        "torch: all-gather, DDP",
    ]
    if ranks > 1:
        # layers · (keys and values twice, their gradients once) · hops, each of a slice
        hops = 2 * 3 * (ranks - 1)
        slice_bytes = 2 * 3 * (24 // ranks) * 32 * 4
        assert result.versions[0].sent["send-recv"] == (hops, hops * slice_bytes)
    assert len(set(result.scores["zig-zag ring"])) == 1
    assert len(set(result.scores["ring"])) == ranks
    assert "scores per head" in result.report()


def test_without_zigzag_a_sequence_may_be_odd_multiples(two):
    assert [one.name for one in two["odd"].versions] == ["ring", "torch: all-gather, DDP"]
