"""The demo of context parallelism: equal, bytes as predicted, and what its options change."""

import pytest
from together import keep_mine, refused, runs

from course_lib import demos
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE, LOSS_TOLERANCE, loss_gaps

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
    assert [one.name for one in result.versions] == [
        "ring",
        "zig-zag ring",
        "torch: all-gather, DDP",
    ]
    for version in result.versions:
        assert max(loss_gaps(version.losses, result.losses_one_process)) <= LOSS_TOLERANCE
        assert version.gradient_difference <= GRADIENT_TOLERANCE
        assert version.sent == version.predicted_sent
        assert version.stored == version.predicted_stored
    if ranks > 1:
        # layers · (keys and values twice, their gradients once) · hops, each of a slice
        hops = 2 * 3 * (ranks - 1)
        slice_bytes = 2 * 3 * (24 // ranks) * 32 * 4
        assert result.versions[0].sent["send-recv"] == (hops, hops * slice_bytes)
    assert len(set(result.scores["zig-zag ring"])) == 1
    assert len(set(result.scores["ring"])) == ranks
    assert "scores per head" in result.report()


def test_the_learners_ring_is_run(tmp_path, monkeypatch):
    keep_mine(tmp_path, monkeypatch, "ring_attention")
    result = demos.run("context", ranks=2, stream=False, parts="mine", **SMALL)
    names = [one.name for one in result.versions]
    assert names[:2] == ["ring, with your ring_forward", "zig-zag ring, with your ring_forward"]
    assert next(iter(result.scores)) == names[0] and names[2].startswith("torch")
    keep_mine(tmp_path, monkeypatch, "ring_attention", ("never masked", ""))
    cases = [({"parts": "mine"}, "ring, with your ring_forward: the loss of update 0 differs")]
    refused("context", cases, **SMALL)


def test_without_zigzag_a_sequence_may_be_odd_multiples(two):
    assert [one.name for one in two["odd"].versions] == ["ring", "torch: all-gather, DDP"]


def test_an_uneven_sequence_is_explained():
    cases = [
        ({"sequence": 23}, "sequence 23 is not divisible by cp 2"),
        ({"sequence": 22}, r"sequence 22 is not divisible by 2\*ranks 4"),
    ]
    refused("context", cases, **SMALL)
