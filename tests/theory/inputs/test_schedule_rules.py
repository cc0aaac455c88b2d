"""Schedules: what each demands, and how many micro-batches it holds."""

import pytest
from every import every
from probes import Given, Probe, check

from course_lib.theory.inputs.schedule_rules import (
    SCHEDULES,
    check_schedule,
    chunks_in_flight,
    chunks_on_a_stage,
    stage_of_chunk,
)


def test_what_each_schedule_holds_by_hand():
    """Four stages and eight micro-batches, on the first stage and on the last."""
    held = {
        name: [chunks_in_flight(name, 4, 8, stage=stage) for stage in (0, 3)]
        for name in SCHEDULES
        if name != "interleaved"
    }
    assert held == {
        "naive": [{0: 1}, {3: 1}],
        "gpipe": [{0: 8}, {3: 8}],
        "1f1b": [{0: 4}, {3: 1}],
        "zb1p": [{0: 4}, {3: 4}],
        "zbv": [{0: 7, 7: 1}, {3: 4, 4: 4}],
        "dualpipe": [{0: 4, 3: 1}, {3: 1, 0: 4}],
    }
    # 2 (p - 1) + (v - 1) p + 1 = 11 passes: 4 to each chunk in turn.
    assert chunks_in_flight("interleaved", 4, 8, 2) == {0: 7, 4: 4}
    # A group of 6: 13 passes of 16, and the second group has only 2 micro-batches.
    assert chunks_in_flight("interleaved", 2, 8, 2, group=6) == {0: 6, 2: 3}
    assert chunks_in_flight("interleaved", 4, 8, 2, group=8) == {0: 8, 4: 7}


def test_a_heavier_chunk_waits_for_its_worst_moment():
    """After 11 forward passes, 7 and 4, one goes to chunk 0 for each that comes back from 1."""
    assert chunks_in_flight("interleaved", 4, 8, 2, layers=(1, 2)) == {0: 7, 4: 4}
    assert chunks_in_flight("interleaved", 4, 8, 2, layers=(2, 1)) == {0: 8, 4: 3}
    assert chunks_in_flight("zbv", 4, 8, stage=1, layers=(1, 2)) == {1: 6, 6: 2}
    assert chunks_in_flight("zbv", 4, 8, stage=1, layers=(2, 1)) == {1: 7, 6: 1}
    assert chunks_in_flight("zbv", 4, 7, layers=(2, 1)) == {0: 7, 7: 1}, "there is no eighth"


@every(
    ("sizes", "message"),
    [
        (("1f1c", 4, 8), "did you mean '1f1b'"),
        (("1f1b", 0, 8), "stages must be at least 1"),
        (("1f1b", 4, 0), "micro_batches must be at least 1"),
        (("1f1b", 4, 8, 2), "take schedule 'interleaved' or virtual_stages 1"),
        (("interleaved", 4, 6, 2), "micro_batches 6 is not divisible by stages"),
        (("interleaved", 4, 8, 2, {"group": 9}), "group must be at most 8"),
        (("interleaved", 4, 8, 2, {"group": 2}), "last has 2, and 4 stages would wait"),
        (("interleaved", 4, 9, 2, {"group": 4}), "last has 1, and 4 stages would wait"),
        (("1f1b", 4, 8, 1, {"group": 8}), "group 8 has no meaning for schedule '1f1b'"),
        (("zbv", 4, 6), "micro_batches of zbv must be at least 7, got 6"),
        (("zbv", 4, 8, 2), "virtual_stages 2 has no meaning for schedule 'zbv'"),
        (("dualpipe", 4, 6), "dualpipe must be at least 8, got 6"),
    ],
)
def test_a_schedule_that_cannot_run_is_explained(sizes, message):
    more = sizes[-1] if isinstance(sizes[-1], dict) else {}
    with pytest.raises(ValueError, match=message):
        check_schedule(*(it for it in sizes if it is not more), **more)


SIZES = {"stages": 4, "micro_batches": 8, "virtual_stages": 1}
IN_TURNS = {"name": "interleaved", "virtual_stages": 2}
PROBES = {
    "check_schedule": check(
        check_schedule,
        SIZES | {"name": "dualpipe", "group": None, "words": ("stages", "micro_batches")},
        {
            "name": "pipes",
            "stages": 3,
            "micro_batches": 6,
            "virtual_stages": 2,
            "group": 8,
            "words": Given(("pp", "accumulation"), {"stages": 3}),
        },
    ),
    "chunks_on_a_stage": Probe(
        chunks_on_a_stage,
        {"name": "1f1b", "virtual_stages": 1},
        {"name": "zbv", "virtual_stages": 3},
    ),
    "stage_of_chunk": Probe(
        stage_of_chunk,
        {"name": "zbv", "stages": 4, "chunk": 5},
        {"name": "interleaved", "stages": 3, "chunk": 6},
    ),
    "chunks_in_flight": Probe(
        chunks_in_flight,
        SIZES | {"name": "1f1b"},
        {
            "name": "gpipe",
            "stages": 2,
            "micro_batches": 3,
            "virtual_stages": Given(3, {"name": "interleaved"}, before=2),
            "stage": 1,
            "group": Given(8, IN_TURNS),
            "layers": Given((2, 1), IN_TURNS, before=(1, 2)),
        },
    ),
}
