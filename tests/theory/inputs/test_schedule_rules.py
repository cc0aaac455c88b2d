"""Schedules: what each demands, and how many micro-batches it holds."""

from collections import Counter

import pytest
from every import every
from hypothesis import assume, given
from hypothesis import strategies as st
from probes import Given, Probe, by_name, check

from course_lib.theory.inputs.schedule_rules import (
    SCHEDULES,
    check_schedule,
    full_moments,
    stage_chunks,
)
from course_lib.theory.pipelines.schedules import FORWARD, INPUT, WEIGHT, stage_order


def chunks_in_flight(name, *sizes, stage=0, group=None):
    """Micro-batches that a stage holds of each of its chunks at its first peak."""
    changes, _ = next(full_moments(name, *sizes, stage=stage, group=group))
    chunks = stage_chunks(name, sizes[0], stage, *sizes[2:])
    return {chunks[place]: count for place, count in changes}


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


def moments(name, *sizes, **more):
    """What is held of each chunk of the stage, and which works backward next."""
    held, found = Counter(), []
    for changes, place in full_moments(name, *sizes, **more):
        for chunk, count in changes:
            held[chunk] += count
        found.append((tuple(held[chunk] for chunk in sorted(held)), place))
    return found


@st.composite
def pipes(draw):
    """A schedule of any sizes and groups that it can run, and one of its stages."""
    name, stages = draw(st.sampled_from(SCHEDULES)), draw(st.integers(1, 6))
    virtual, group = 1, None
    if name == "dualpipe":
        stages *= 2
        count = 2 * stages + 2 * draw(st.integers(0, 4))
    elif name == "zbv":
        count = 2 * stages - 1 + draw(st.integers(0, 9))
    elif name == "interleaved":
        virtual, group = draw(st.integers(2, 4)), draw(st.integers(1, 9))
        count = group if group < stages else group * draw(st.integers(1, 5))
        count += stages * draw(st.integers(0, 1)) if group >= stages else 0
        assume(count % group == 0 or count % group >= stages)
    else:
        count = draw(st.integers(1, 12))
    return (name, stages, count, virtual), {
        "stage": draw(st.integers(0, stages - 1)),
        "group": group,
    }


@given(pipes(), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_no_moment_of_any_schedule_holds_more(pipe, weights):
    """Whatever a micro-batch of each chunk weighs, and whichever chunk works backward next."""
    (name, *sizes, virtual), more = pipe
    order = stage_order(name, more["stage"], *sizes, virtual_stages=virtual, group=more["group"])
    held, most = Counter(), {}
    for work in (part for each in order for part in each.parts):
        if work.kind == FORWARD:
            held[work.chunk] += 1
            continue
        if work.kind != WEIGHT:
            weight = sum(weights[chunk] * number for chunk, number in held.items())
            most[work.chunk] = max(weight, most.get(work.chunk, 0))
        held[work.chunk] -= work.kind != INPUT
    told = {}
    for counts, place in moments(*pipe[0], **more):
        weight = sum(each * number for each, number in zip(weights, counts, strict=False))
        told[place] = max(weight, told.get(place, 0))
    assert told == most


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
PROBES = by_name(
    check(
        check_schedule,
        SIZES | {"name": "dualpipe", "group": None, "words": ("stages", "micro_batches")},
        {"words": Given(("pp", "accumulation"), {"stages": 3})},
    ),
    Probe(
        full_moments,
        SIZES | {"name": "1f1b"},
        {
            "micro_batches": 3,
            "virtual_stages": Given(3, {"name": "interleaved"}, before=2),
            "group": Given(8, IN_TURNS),
        },
        see=list,
        signed=True,
    ),
)
