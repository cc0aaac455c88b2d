"""Naming what is slow: made-up clusters with a known fault, and real ranks that sleep."""

import json
import random
from itertools import combinations

import pytest
from refused import accepted
from together import runs

from course_lib import launch
from course_lib.chapters.ch16_cluster_clinic.pairwise import PairTest, SlowPart, name_slow, rounds
from course_lib.launch import two_nodes

FAST, SLOW = 24e9, 6e9


def measured(ranks, schedule, is_slow, seed=0):
    """Every pair of the schedule, with a noise of a tenth."""
    pick = random.Random(seed)
    return [
        PairTest(a, b, (SLOW if is_slow(a, b) else FAST) * pick.uniform(0.9, 1))
        for pairs in rounds(ranks, schedule)
        for a, b in pairs
    ]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_all_pairs_meet_once_and_no_rank_twice_in_a_round(ranks):
    found = rounds(ranks, "all")
    assert sorted(pair for pairs in found for pair in pairs) == list(combinations(range(ranks), 2))
    assert len(found) == ranks - 1 + ranks % 2
    for pairs in found:
        assert len({rank for pair in pairs for rank in pair}) == 2 * len(pairs)


def test_halving_has_log_rounds():
    assert rounds(8) == [
        [(0, 4), (1, 5), (2, 6), (3, 7)],
        [(0, 2), (1, 3), (4, 6), (5, 7)],
        [(0, 1), (2, 3), (4, 5), (6, 7)],
    ]
    assert len(rounds(64)) == 6 and len(rounds(64, "all")) == 63


@pytest.mark.parametrize("schedule", ["halving", "all"])
@pytest.mark.parametrize("ranks", [4, 8, 64])
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_rank_and_a_slow_way_between_two_halves_are_named(ranks, schedule, seed):
    slow = seed % ranks
    found = name_slow(measured(ranks, schedule, lambda a, b: slow in (a, b), seed))
    assert (found.kind, found.groups) == ("ranks", ((slow,),))
    assert found.slow_bytes_per_s == pytest.approx(SLOW, rel=0.11)
    assert found.usual_bytes_per_s == pytest.approx(FAST, rel=0.11)

    half = ranks // 2
    found = name_slow(measured(ranks, schedule, lambda a, b: (a < half) != (b < half)))
    assert found.kind == "cut"
    assert found.groups == (tuple(range(half)), tuple(range(half, ranks)))


@pytest.mark.parametrize("pair", [(0, 4), (2, 3), (0, 3)])
def test_a_slow_link_is_named_where_it_is_tested(pair):
    for schedule in ("halving", "all"):
        found = name_slow(measured(8, schedule, lambda a, b: (a, b) == pair))
        link = ("link", ((pair[0],), (pair[1],)))
        missed = schedule == "halving" and pair == (0, 3)  # which never meet
        assert (found.kind, found.groups) == (("nothing", ()) if missed else link)


def test_noise_is_nothing_and_a_muddle_is_unknown():
    assert name_slow(measured(8, "all", lambda a, b: False)).kind == "nothing"
    muddle = name_slow(measured(8, "all", lambda a, b: (a, b) in ((0, 1), (2, 3), (4, 6))))
    assert (muddle.kind, muddle.groups) == ("unknown", ((0, 1), (2, 3), (4, 6)))
    # Of three ranks and one pair each way nobody can say who it is.
    three = [PairTest(0, 1, SLOW), PairTest(1, 2, SLOW), PairTest(0, 2, SLOW)]
    assert name_slow(three).kind == "nothing"
    two = [PairTest(0, 1, FAST), PairTest(1, 2, SLOW)]
    assert name_slow(two) == SlowPart("ranks", ((2,),), SLOW, FAST)


@pytest.mark.parametrize("seed", range(20))
def test_no_healthy_rank_is_accused(seed):
    """Whatever pairs are slow, ranks that are named are slow in all of their tests."""
    pick = random.Random(seed)
    slow = {pair for pair in combinations(range(6), 2) if pick.random() < 0.3}
    tests = measured(6, "all", lambda a, b: (a, b) in slow, seed)
    found = name_slow(tests)
    if found.kind == "ranks":
        for rank in found.groups[0]:
            assert all(pair in slow for pair in combinations(range(6), 2) if rank in pair)


def test_the_sentences():
    assert SlowPart("nothing", usual_bytes_per_s=24e9).explain().endswith("all reach about 24 GB/s")
    one = SlowPart("ranks", ((3,),), 6e9, 24e9).explain()
    assert one.startswith("rank 3 reaches 6 GB/s instead of 24 GB/s with everybody")
    assert "ranks 1, 2 reach 6" in SlowPart("ranks", ((1, 2),), 6e9, 24e9).explain()
    link = SlowPart("link", ((0,), (4,)), 6e6, 24e6).explain()
    assert link.startswith("only between rank 0 and rank 4 there is 6 MB/s instead of 24 MB/s")
    cut = SlowPart("cut", ((0, 1), tuple(range(2, 20))), 6e9, 24e9).explain()
    assert "between ranks 0, 1 and ranks 2, 3, 4, 5, 6, 7, 8, 9 … there is" in cut
    assert "(0–1, 2–3)" in SlowPart("unknown", ((0, 1), (2, 3)), 6e9, 24e9).explain()


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
    head, *rows, _ = result.report().splitlines()
    assert head[13:].split() == list("0123") and [row[:13].strip() for row in rows] == list("012")
    cells = {(a, b): row[13 + 9 * b :][:9].strip() for a, row in enumerate(rows) for b in range(4)}
    rates = {(t.first, t.second): f"{t.bytes_per_s / 1e6:.1f}" for t in result.tests}
    assert {pair: cell for pair, cell in cells.items() if cell} == rates
    pair = four[f"0-2 {schedule}"].found
    assert (pair.kind, pair.groups) == ("link", ((0,), (2,)))


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_two_nodes_are_joined_by_what_is_slow():
    argv = ["pairwise", "--json", "--repeats", "2", "--passes", "2"]
    first, _ = launch.run_on_two_nodes("course_lib.demos", argv, 2, mbit=50, timeout_s=250)
    result = json.loads(first)
    assert result["found"]["kind"] == "cut" and result["found"]["groups"] == [[0, 1], [2, 3]]
    # 50 Mbit/s is 6.25 MB/s, shared by the two pairs of a round.
    assert result["found"]["slow_bytes_per_s"] < 7e6
    assert result["found"]["usual_bytes_per_s"] > 5 * result["found"]["slow_bytes_per_s"]


def test_nonsense_is_refused_in_a_sentence():
    refused = [
        (lambda: rounds(6), "ranks 6 is no power of two"),
        (lambda: rounds(10**9, "all"), "ranks must be at most 1024"),
        (lambda: rounds(4, "some"), "schedule 'some' is not one of"),
        (lambda: PairTest(1, 1, 1e9), "first and second are both 1"),
        (lambda: PairTest(0, 1, 0), "bytes_per_s must be above 0"),
        (lambda: name_slow([PairTest(0, 1, 1e9)]), "tests has 1 of two pairs"),
    ]
    assert not accepted(refused)
