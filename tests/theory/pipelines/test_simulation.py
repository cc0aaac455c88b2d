"""What a timeline says of itself: drawings that can be checked by hand, and its text."""

from itertools import pairwise

import pytest
from every import every
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import Given, Probe, by_name
from test_bubble import DURATIONS, IN_TURNS, SIZES, sizes

from course_lib.theory.inputs.schedule_rules import SCHEDULES
from course_lib.theory.pipelines import bubble
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.schedules import Pass, Schedule
from course_lib.theory.pipelines.simulation import Deadlock, pipeline_trace, simulate, timeline


def test_dualpipe_of_the_authors_figure():
    """8 stages and 20 micro-batches, as drawn in the DualPipe README: bubble 6, 9 in flight.

    Its middle stages run their first forward and backward apart; each stage overlaps
    2 (10 - 8 + depth + 1) pairs, and one for each stage further outside.
    """
    line = timeline("dualpipe", 8, 20)
    pairs = [sum(task.kind == "F&B" for task in tasks) for tasks in line.by_stage]
    assert pairs == [9, 10, 11, 11, 11, 11, 10, 9]
    assert line.bubble_time == 6
    assert [line.in_flight(stage) for stage in range(8)] == [9] * 8


def test_two_stages_by_hand():
    line = timeline("1f1b", 2, 2)
    spans = [[(t.kind, t.micro_batch, t.start, t.end) for t in tasks] for tasks in line.by_stage]
    assert spans == [
        [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 0, 4, 6), ("B", 1, 7, 9)],
        [("F", 0, 1, 2), ("B", 0, 2, 4), ("F", 1, 4, 5), ("B", 1, 5, 7)],
    ]


def test_a_repeated_batch_is_flushed_each_time():
    """Both halves of an overlapped pass move on as well."""
    for batch in (timeline("1f1b", 2, 2), timeline("dualpipe", 4, 8)):
        size, tasks = len(batch.tasks), batch.repeated(3)
        assert tasks[:size] == batch.tasks and len(tasks) == 3 * size
        for before, after in zip(tasks, tasks[size:], strict=False):
            assert after.start == pytest.approx(before.start + batch.makespan)
            moved = batch.schedule.micro_batches
            assert after.micro_batch == before.micro_batch + moved
            if before.backward:
                assert after.backward.micro_batch == before.backward.micro_batch + moved


RECORDS = {
    "Task": list(timeline("dualpipe", 4, 8).tasks),
    "Timeline": [timeline("dualpipe", 4, 8), timeline("1f1b", 2, 4)],
}


# --- simulation ---


@every("name", SCHEDULES)
@given(data=st.data(), transfer=st.sampled_from([0.0, 0.3]), skew=DURATIONS)
@settings(deadline=None)
def test_every_timeline_is_possible_and_holds_the_closed_form(name, data, transfer, skew):
    """Each pass once; no two at a time on one stage; nothing before what it needs has arrived."""
    p, m, v = data.draw(sizes(name))
    times = PassTimes((*[1.0] * (p - 1), skew), 2.0, transfer=transfer)
    line = timeline(name, p, m, v, times=times)
    ends = {}
    for tasks in line.by_stage:
        for before, after in pairwise(tasks):
            assert before.end <= after.start
        for task in tasks:
            for work in Pass(task.kind, task.micro_batch, task.chunk, task.backward).parts:
                piece = line.schedule.pieces[task.stage][work.chunk] % line.schedule.length
                # The input's gradient counts as the backward pass.
                key = work.kind.replace("I", "B"), work.micro_batch, piece
                assert key not in ends
                ends[key] = task.start, task.end
    places = p * line.schedule.visits
    for i in range(m):
        for place in range(places):
            start, end = ends["F", i, place]
            assert ends["B", i, place][0] >= end
            homes = line.schedule.homes
            hop = transfer if homes[place - 1] != homes[place] else 0.0
            if place:
                assert start >= ends["F", i, place - 1][1] + hop
                assert ends["B", i, place - 1][0] >= ends["B", i, place][1] + hop
    assert sum(kind == "F" for kind, _, _ in ends) == m * places
    assert sum(line.busy) + sum(line.idle) == pytest.approx(p * line.makespan)
    held = [bubble.in_flight(name, p, m, stage, virtual_stages=v) for stage in range(p)]
    assert [line.in_flight(stage) for stage in range(p)] == pytest.approx(held)


def test_uneven_stages_wait_for_the_slowest():
    uneven = timeline("1f1b", 4, 16, times=PassTimes((1, 1, 2, 1), (2, 2, 4, 2)))
    assert uneven.idle[2] < uneven.idle[0]
    # The slow stage starts after 2 forward passes, works 16 x 6, waits 1 for its first backward,
    # and is followed by 2 backward passes of 2.
    assert uneven.makespan == 2 + 16 * 6 + 1 + 2 * 2


def test_transfers_add_to_the_bubble():
    slow = timeline("gpipe", 4, 8, times=PassTimes(transfer=0.5))
    assert slow.makespan == timeline("gpipe", 4, 8).makespan + 2 * 3 * 0.5


FIRST = (Pass("F", 0), Pass("B", 0))


@every(
    ("orders", "words"),
    [
        ((FIRST, (Pass("B", 0), Pass("F", 0))), "stage 1 for F of micro-batch 0 on stage 1"),
        ((FIRST, (Pass("F", 0),)), "stage 0 for B of micro-batch 0 on stage 1"),
        (((Pass("F", 0), Pass("W", 0)),), "stage 0 for B of micro-batch 0 on stage 0"),
    ],
)
def test_deadlock_names_who_waits(orders, words):
    with pytest.raises(Deadlock, match=words):
        simulate(Schedule("mine", 1, orders), PassTimes())


REFUSED = [
    (
        lambda: simulate(Schedule("mine", 1, ((Pass("F", 1), Pass("F", 1)),)), PassTimes()),
        "F of micro-batch 1 twice on stage 0",
    ),
    (lambda: timeline("1f1b", 4, 8, times=PassTimes((1, 2))), "forward has 2 values for 4"),
    (lambda: timeline("1f1b", 2, 8, times=PassTimes(weight=3)), "weight 3 is part of backward"),
    (lambda: timeline("1f1b", 4, 8).in_flight(4), "stage must be at most 3"),
]


# --- moments ---


@every("name", SCHEDULES)
@every(("stages", "micro_batches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 8, 3), (8, 16, 2)])
def test_a_trace_is_busy_as_long_and_holds_as_much_as_the_timeline(
    name, stages, micro_batches, chunks
):
    times = PassTimes(forward=1, backward=3) if stages == 2 else PassTimes()
    virtual = chunks if name == "interleaved" else 1
    line = timeline(name, stages, micro_batches, virtual, times=times)
    trace = pipeline_trace(line)
    assert (trace.times[0], trace.times[-1]) == (0, line.makespan)
    for stage, events in enumerate(trace.lanes().values()):
        spans = {(event.at, event.until) for event in events}  # both halves of an "F&B" in one
        assert sum(end - start for start, end in spans) == pytest.approx(line.busy[stage])
        sizes = [size / line.schedule.visits for _, size in trace.levels(stage)]
        assert max(sizes) == line.in_flight(stage)
        assert sizes[-1] == 0, "an update leaves nothing behind"


PROBES = by_name(
    Probe(timeline("1f1b", 4, 8).in_flight, {"stage": 0}),
    Probe(
        timeline,
        SIZES | {"name": "gpipe"},
        {
            "virtual_stages": IN_TURNS,
            "group": Given(8, {"name": "interleaved", "virtual_stages": 2}),
        },
        see=lambda run: run.tasks,
    ),
    Probe(pipeline_trace, {"line": timeline("1f1b", 2, 2)}, {"line": timeline("gpipe", 2, 3)}),
)
