"""The demo of pairs: what sleeps is named, on ranks of one machine and on two nodes."""

import json

import pytest
from together import runs

from course_lib import launch
from course_lib.launch import two_nodes

REASON = two_nodes.obstacle()
# Sleeps far longer than what a busy machine adds to a transfer.
QUICK = {"size_kib": 64, "repeats": 2, "passes": 3, "slow_ms": 150.0}


@pytest.fixture(scope="module")
def four():
    cases = {
        f"{slow} {schedule}": {"slow": slow, "schedule": schedule}
        for slow in ("2", "0-2")
        for schedule in ("halving", "all")
    }
    return runs("pairwise", cases, 4, **QUICK)


@pytest.mark.parametrize("schedule", ["halving", "all"])
def test_a_rank_or_a_pair_that_sleeps_is_named(four, schedule):
    result = four[f"2 {schedule}"]
    assert (result.found.kind, result.found.groups) == ("ranks", ((2,),))
    assert result.rounds == {"halving": 2, "all": 3}[schedule]
    assert len(result.tests) == {"halving": 4, "all": 6}[schedule]
    # There and back takes 150 ms at least, half of it one way.
    assert result.found.slow_bytes_per_s <= 64 * 1024 / 0.075
    assert "rank 2 reaches" in result.report() and "with everybody" in result.report()
    pair = four[f"0-2 {schedule}"].found
    assert (pair.kind, pair.groups) == ("link", ((0,), (2,)))


def test_three_ranks_need_all_pairs():
    result = runs("pairwise", {"": {"slow": "1", "schedule": "all"}}, 3, **QUICK)[""]
    assert result.found.groups == ((1,),)


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_two_nodes_are_joined_by_what_is_slow():
    argv = ["pairwise", "--json", "--repeats", "2", "--passes", "2"]
    first, _ = launch.run_on_two_nodes("course_lib.demos", argv, 2, mbit=50, timeout_s=100)
    result = json.loads(first)
    assert result["found"]["kind"] == "cut" and result["found"]["groups"] == [[0, 1], [2, 3]]
    # 50 Mbit/s is 6.25 MB/s, shared by the two pairs of a round.
    assert result["found"]["slow_bytes_per_s"] < 7e6
    assert result["found"]["usual_bytes_per_s"] > 5 * result["found"]["slow_bytes_per_s"]
