"""The demo of expert parallelism: equal, bytes as predicted, and what its options change."""

from statistics import fmean

import pytest
from together import runs

SMALL = {"model": "2x32x4", "steps": 3, "sequence": 16}


# Of 6 samples two of four ranks have two, two have one.
CASES = {
    1: {"equal": {}, "balanced": {"steps": 40, "balance": 0.1, "model": "1x32x4"}},
    2: {
        "equal": {"capacity_factor": 0.8, "top_k": 1},
        "fixed": {"fixed_routes": True},
        "plain": {},
    },
    4: {"equal": {"experts": 8, "batch": 6}, "fixed": {"fixed_routes": True}, "plain": {}},
}


@pytest.fixture(scope="module")
def results():
    return {ranks: runs("experts", cases, ranks, **SMALL) for ranks, cases in CASES.items()}


def test_equal_to_one_process(results):
    for ranks, cases in CASES.items():
        result = results[ranks]["equal"]
        assert [version.name for version in result.versions] == [
            "by hand",
            "torch: all-to-all, DDP",
        ]
        for version in result.versions:
            assert bool(version.sent) == (ranks > 1)  # `main` verifies all else
        assert (sum(result.dropped) > 0) == ("capacity_factor" in cases["equal"])
        assert "stay" in result.report()


def test_with_equal_loads_the_theory_knows_the_bytes(results):
    for ranks in (2, 4):
        result = results[ranks]["fixed"]
        # layers · 4 journeys · tokens of a rank · top_k · hidden · 4 bytes
        expected = 2 * 4 * (8 * 16 // ranks) * 2 * 32 * 4
        for version in result.versions:
            assert version.sent["all-to-all"] == (8, expected)
        assert result.imbalance == [1.0] * 3


def test_experts_take_less_memory_on_more_ranks(results):
    two, four = (results[ranks]["plain"].versions[0].stored["weights"] for ranks in (2, 4))
    one_expert = 4 * (2 * 32 * 128 + 128 + 32)
    assert two - four == 2 * one_expert  # layers, each with one expert fewer


def test_the_balance_loss_lowers_the_imbalance(results):
    result = results[1]["balanced"]
    with_loss, without = result.imbalance[-10:], result.imbalance_without_loss[-10:]
    assert fmean(with_loss) < 0.95 * fmean(without)
