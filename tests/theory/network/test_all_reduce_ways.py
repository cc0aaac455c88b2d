"""Who sends how much: against the formulas, and what each rank sends in truth."""

import pytest
from probes import Probe, by_name
from refused import rows

from course_lib.theory.network.all_reduce_ways import SWITCH, Way, all_reduce_ways
from course_lib.theory.network.collectives import sent_bytes


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_loads_every_rank_alike(ranks):
    ring = all_reduce_ways(ranks)["ring"]
    expected = sent_bytes("all-reduce", 1, ranks)
    assert [ring.sent_by(rank) for rank in range(ranks)] == pytest.approx([expected] * ranks)
    assert ring.busiest == tuple(range(ranks))


@pytest.mark.parametrize("way", ["one rank adds", "tree"])
def test_the_others_send_as_much_in_all(way):
    found = all_reduce_ways(8)[way]
    assert sum(found.sent.values()) == pytest.approx(8 * sent_bytes("all-reduce", 1, 8))
    assert 0 in found.busiest


def test_rank_0_is_the_busiest():
    ways = all_reduce_ways(8)
    assert [way.most for way in ways.values()] == [7, 3, 1.75, 1.125]


def test_what_a_switch_sends_is_no_rank_s():
    switched = all_reduce_ways(4)["a switch adds"]
    assert {rank for pair in switched.sent for rank in pair} == {SWITCH, 0, 1, 2, 3}
    assert switched.sent_by(3) == 1.25


REFUSED = [
    *rows(
        all_reduce_ways,
        [
            1,
            65,
        ],
        "ranks must be at",
    ),
]
PROBES = by_name(
    Probe(all_reduce_ways, {"ranks": 4}, {"ranks": 5}),
    Probe(all_reduce_ways(4)["tree"].sent_by, {"rank": 0}, {"rank": 3}),
)
RECORDS = {"Way": [Way(2, {(0, 1): 1.0}), all_reduce_ways(3)["ring"]]}
