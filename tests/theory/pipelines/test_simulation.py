"""Schedules against the closed forms, against torch's own orders, and against small drawings."""

import time
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.schedule_rules import SCHEDULES
from course_lib.theory.pipelines import bubble
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.schedules import Pass, Schedule, schedule
from course_lib.theory.pipelines.simulation import Deadlock, simulate, timeline

DURATIONS = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
SHORT = st.integers(1, 8)


@st.composite
def sizes(draw, name):
    """Stages, micro-batches and virtual stages that schedule `name` accepts."""
    stages = draw(SHORT)
    if name == "interleaved":
        return stages, stages * draw(st.integers(1, 4)), draw(st.integers(1, 4))
    if name == "dualpipe":
        stages = 2 * draw(st.integers(1, 4))
        return stages, 2 * stages + 2 * draw(st.integers(0, 6)), 1
    return stages, draw(st.integers(1, 24)), 1


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "interleaved"])
@given(data=st.data(), forward=DURATIONS, backward=DURATIONS)
@settings(deadline=None)
def test_bubble_is_the_closed_form(name, data, forward, backward):
    p, m, v = data.draw(sizes(name))
    line = timeline(name, p, m, v, times=PassTimes(forward, backward))
    closed = bubble.bubble_time(name, p, m, v, times=PassTimes(forward, backward))
    assert line.idle == pytest.approx([closed] * p)
    assert line.makespan == pytest.approx(m * (forward + backward) + closed)
    if name != "naive":
        assert line.bubble_over_ideal == pytest.approx(bubble.bubble_over_ideal(p, m, v))
        assert line.bubble_fraction == pytest.approx(bubble.bubble_fraction(p, m, v))


@given(p=SHORT, more=st.integers(0, 12), forward=DURATIONS, gradient=DURATIONS, weight=DURATIONS)
@settings(deadline=None)
def test_zero_bubble_is_the_closed_form(p, more, forward, gradient, weight):
    assume(weight <= min(forward, gradient))
    parts = {"forward": forward, "backward": gradient + weight, "weight": weight}
    times = PassTimes(**parts)
    line = timeline("zb1p", p, p + more, times=times)
    assert line.idle == pytest.approx([bubble.bubble_time("zb1p", p, p + more, times=times)] * p)


@given(
    half=st.integers(1, 5),
    more=st.integers(0, 6),
    forward=DURATIONS,
    weight=DURATIONS,
    shown=st.sampled_from([0.0, 0.4, 1.0]),
)
@settings(deadline=None)
def test_dualpipe_is_the_closed_form(half, more, forward, weight, shown):
    """`shown`: the part of the forward pass that the backward pass does not hide."""
    assume(weight <= forward)
    p, m = 2 * half, 4 * half + 2 * more
    parts = {"forward": forward, "backward": forward + weight, "weight": weight}
    parts["overlapped"] = parts["backward"] + shown * forward
    line = timeline("dualpipe", p, m, times=PassTimes(**parts))
    closed = bubble.bubble_time("dualpipe", p, m, times=PassTimes(**parts))
    assert line.idle[half - 1 : half + 1] == pytest.approx([closed] * 2, abs=1e-9)
    assert max(line.idle) <= closed + 1e-9
    if shown == 1.0:  # the outer stages overlap fewer pairs: only a gain by overlap sets them apart
        assert line.idle == pytest.approx([closed] * p, abs=1e-9)


def test_closed_forms_stop_where_they_should():
    # With a weight part longer than the forward pass, or fewer micro-batches than stages, the
    # bubble is larger than the form says: the simulation is what counts.
    slow = PassTimes(forward=1, backward=3, weight=1.5)
    closed = bubble.bubble_time("zb1p", 4, 8, times=slow)
    assert timeline("zb1p", 4, 8, times=slow).bubble_time > closed
    few = timeline("zb1p", 6, 2).bubble_time
    assert few > bubble.bubble_time("zb1p", 6, 2)
    with pytest.raises(ValueError, match="weight 3 is too large"):
        bubble.bubble_time("zb1p", 4, 8, times=PassTimes(1, 4, 3))


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data())
@settings(deadline=None)
def test_in_flight_is_the_closed_form(name, data):
    p, m, v = data.draw(sizes(name))
    line = timeline(name, p, m, v)
    for stage in range(p):
        assert line.in_flight(stage) == pytest.approx(
            bubble.in_flight(name, p, m, stage, virtual_stages=v)
        )


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data())
@settings(deadline=None)
def test_in_flight_is_the_layouts(name, data):
    """What the memory model takes from a layout is what a timeline counts."""
    p, m, v = data.draw(sizes(name))
    assume(name != "interleaved" or v > 1)
    layout = Layout(pp=p, accumulation=m, schedule=name, virtual_stages=v)
    line = timeline(name, p, m, v)
    for stage in range(p):
        assert sum(layout.in_flight(stage).values()) == pytest.approx(v * line.in_flight(stage))


@given(p=SHORT, more=st.integers(0, 12))
@settings(deadline=None)
def test_zero_bubble_fraction_of_its_authors(p, more):
    """(p-1) / (3m + p-1) for F = I = W (github.com/sail-sg/zero-bubble-pipeline-parallelism)."""
    m = p + more
    assert timeline("zb1p", p, m).bubble_fraction == pytest.approx((p - 1) / (3 * m + p - 1))


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data(), transfer=st.sampled_from([0.0, 0.3]), skew=DURATIONS)
@settings(deadline=None)
def test_every_timeline_is_possible(name, data, transfer, skew):
    """Each pass once; no two at a time on one stage; nothing before what it needs has arrived."""
    p, m, v = data.draw(sizes(name))
    times = PassTimes((*[1.0] * (p - 1), skew), 2.0, transfer=transfer)
    line = timeline(name, p, m, v, times=times)
    ends = {}
    for tasks in line.by_stage:
        for before, after in pairwise(tasks):
            assert before.end <= after.start
        for task in tasks:
            for kind, i, chunk, start in _passes(task):
                assert ends.setdefault((kind, i, _place(line, task.stage, chunk)), None) is None
                ends[kind, i, _place(line, task.stage, chunk)] = (start, task.end)
    places = p * (1 if name == "dualpipe" else v)
    hop = transfer if p > 1 else 0.0
    for i in range(m):
        for place in range(places):
            start, end = ends["F", i, place]
            assert ends["B", i, place][0] >= end
            if place:
                assert start >= ends["F", i, place - 1][1] + hop
                assert ends["B", i, place - 1][0] >= ends["B", i, place][1] + hop
    assert sum(kind == "F" for kind, _, _ in ends) == m * places
    assert sum(line.busy) + sum(line.idle) == pytest.approx(p * line.makespan)


def _passes(task):
    """A task as the passes in it; the input's gradient counts as the backward pass."""
    if task.kind == "F&B":
        yield "F", task.micro_batch, task.chunk, task.start
        yield "B", task.backward.micro_batch, task.backward.chunk, task.start
    else:
        yield task.kind.replace("I", "B"), task.micro_batch, task.chunk, task.start


def _place(line, stage, chunk):
    if line.schedule.both_ways:
        return line.stages - 1 - stage if chunk else stage
    return chunk * line.stages + stage


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


def test_weights_follow_their_inputs():
    for name in ("zb1p", "dualpipe"):
        for tasks in timeline(name, 4, 8).by_stage:
            inputs = {
                (task.micro_batch, task.chunk): task.end for task in tasks if task.kind == "I"
            }
            weights = [task for task in tasks if task.kind == "W"]
            assert len(weights) == len(inputs) > 0
            assert all(task.start >= inputs[task.micro_batch, task.chunk] for task in weights)


# --- second source: the orders that torch itself runs ---------------------------------------------


def _torch_order(actions, stages):
    return [
        (action.computation_type.value, action.microbatch_index, action.stage_index // stages)
        for action in actions
        if action is not None and action.computation_type.value in ("F", "B", "I", "W")
    ]


def _our_order(name, stage, stages, micro_batches, virtual_stages=1):
    plan = schedule(name, stages, micro_batches, virtual_stages)
    return [(work.kind, work.micro_batch, work.chunk) for work in plan.orders[stage]]


@pytest.mark.torch_internals
@pytest.mark.parametrize(("stages", "rounds", "virtual"), [(4, 2, 2), (3, 4, 3), (8, 1, 2)])
def test_interleaved_is_torchs_order(stages, rounds, virtual):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    settings_of_torch = _Sizes(virtual, stages, stages, stages * rounds)
    for rank in range(stages):
        theirs = torch_schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations(
            settings_of_torch, rank
        )
        ours = _our_order("interleaved", rank, stages, stages * rounds, virtual)
        assert ours == _torch_order(theirs, stages)


@pytest.mark.torch_internals
@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 4), (4, 9), (6, 6), (2, 5)])
def test_zb1p_is_torchs_order(stages, micro_batches):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    settings_of_torch = _Sizes(1, stages, micro_batches, micro_batches)
    for rank in range(stages):
        theirs = torch_schedules.ScheduleInterleavedZeroBubble._calculate_single_rank_operations(
            settings_of_torch, rank
        )
        assert _our_order("zb1p", rank, stages, micro_batches) == _torch_order(theirs, stages)


@pytest.mark.torch_internals
@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (5, 7), (2, 3)])
def test_1f1b_and_gpipe_are_torchs_orders(stages, micro_batches):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    settings_of_torch = _Sizes(1, stages, micro_batches, micro_batches)
    theirs = torch_schedules.Schedule1F1B._get_pipeline_order(settings_of_torch)
    gpipe = torch_schedules.ScheduleGPipe._get_pipeline_order(settings_of_torch)
    for rank in range(stages):
        ours = _our_order("1f1b", rank, stages, micro_batches)
        if rank < stages - 1:  # torch's listing for the last stage starts at micro-batch 1
            assert ours == _torch_order(theirs[rank], stages)
        # torch runs GPipe's backward passes first in, first out: the bubble is the same.
        ours = _our_order("gpipe", rank, stages, micro_batches)
        assert sorted(ours) == sorted(_torch_order(gpipe[rank], stages))


class _Sizes:
    """The attributes that torch's order functions read from a schedule object."""

    def __init__(self, local, group, per_round, micro_batches):
        self.n_local_stages, self.pp_group_size = local, group
        self._num_stages, self._n_microbatches = group, micro_batches
        self.microbatches_per_round = per_round


# --- drawings small enough to check by hand -------------------------------------------------------


def test_two_stages_by_hand():
    line = timeline("1f1b", 2, 2)
    spans = [[(t.kind, t.micro_batch, t.start, t.end) for t in tasks] for tasks in line.by_stage]
    assert spans == [
        [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 0, 4, 6), ("B", 1, 7, 9)],
        [("F", 0, 1, 2), ("B", 0, 2, 4), ("F", 1, 4, 5), ("B", 1, 5, 7)],
    ]


def test_uneven_stages_wait_for_the_slowest():
    even = timeline("1f1b", 4, 16)
    uneven = timeline("1f1b", 4, 16, times=PassTimes((1, 1, 2, 1), (2, 2, 4, 2)))
    assert uneven.idle[2] < uneven.idle[0]
    # The slow stage starts after 2 forward passes, works 16 x 6, waits 1 for its first backward,
    # and is followed by 2 backward passes of 2.
    assert uneven.makespan == 2 + 16 * 6 + 1 + 2 * 2
    assert uneven.makespan > even.makespan


def test_transfers_add_to_the_bubble():
    free = timeline("gpipe", 4, 8)
    slow = timeline("gpipe", 4, 8, times=PassTimes(transfer=0.5))
    assert slow.makespan == free.makespan + 2 * 3 * 0.5
    assert timeline("1f1b", 1, 8, times=PassTimes(transfer=9)).bubble_time == 0


def test_1f1b_feels_transfers_more_often_than_gpipe():
    times = PassTimes(transfer=0.5)
    assert (
        timeline("1f1b", 4, 8, times=times).makespan > timeline("gpipe", 4, 8, times=times).makespan
    )


@pytest.mark.parametrize(
    "change",
    [
        {"forward": 2.0},
        {"backward": 3.0},
        {"weight": 0.5},
        {"overlapped": 2.5},
        {"transfer": 0.25},
    ],
)
def test_every_duration_matters(change):
    assert timeline("dualpipe", 4, 8, times=PassTimes(**change)).makespan != (
        timeline("dualpipe", 4, 8).makespan
    )


def test_own_order():
    """An order of one's own: GPipe on the first stage only holds more for nothing."""
    last = schedule("1f1b", 2, 4).orders[1]
    mixed = Schedule("mine", 4, (schedule("gpipe", 2, 4).orders[0], last))
    line = simulate(mixed, PassTimes())
    assert line.in_flight(0) == 4
    assert line.makespan >= timeline("1f1b", 2, 4).makespan


def test_1f1b_before_gpipe_deadlocks():
    """The first stage waits for a gradient, the last one for all inputs: neither comes."""
    first, last = schedule("1f1b", 2, 4).orders[0], schedule("gpipe", 2, 4).orders[1]
    with pytest.raises(Deadlock, match="stage 1 for F of micro-batch 2 on stage 0"):
        simulate(Schedule("mine", 4, (first, last)), PassTimes())


def test_deadlock_names_who_waits():
    first = (Pass("F", 0), Pass("B", 0))
    last = (Pass("B", 0), Pass("F", 0))
    with pytest.raises(Deadlock, match="stage 1 for F of micro-batch 0 on stage 1"):
        simulate(Schedule("mine", 1, (first, last)), PassTimes())
    with pytest.raises(Deadlock, match="stage 0 for B of micro-batch 0 on stage 1"):
        simulate(Schedule("mine", 1, (first, (Pass("F", 0),))), PassTimes())
    with pytest.raises(Deadlock, match="stage 0 for B of micro-batch 0 on stage 0"):
        simulate(Schedule("mine", 1, ((Pass("F", 0), Pass("W", 0)),)), PassTimes())


def test_a_pass_that_is_run_twice_is_refused():
    with pytest.raises(ValueError, match="F of micro-batch 0 twice on stage 0"):
        simulate(Schedule("mine", 1, ((Pass("F", 0), Pass("F", 0)),)), PassTimes())


def test_fast_enough_for_a_slider():
    start = time.process_time()
    for _ in range(3):
        timeline("1f1b", 16, 64)
    assert (time.process_time() - start) / 3 < 0.1  # 5 ms on a quiet laptop


def test_explain_has_the_totals():
    text = timeline("1f1b", 4, 8).explain()
    assert "4 stages, 8 micro-batches" in text
    assert "makespan 33 = busy 24 + bubble 9" in text
    assert "37.50%" in text
    assert text.count("in flight") == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: timeline("1f1c", 4, 8), "did you mean '1f1b'"),
        (lambda: timeline("1f1b", 0, 8), "stages must be at least 1"),
        (lambda: timeline("1f1b", 4, 0), "micro_batches must be at least 1"),
        (
            lambda: timeline("interleaved", 4, 6, 2),
            r"micro_batches \(accumulation\) 6 is not divisible by stages",
        ),
        (lambda: timeline("1f1b", 4, 8, 2), "virtual_stages 2 has no meaning"),
        (lambda: timeline("dualpipe", 3, 8), r"stages \(pp\) 3 is not divisible"),
        (
            lambda: timeline("dualpipe", 4, 6),
            r"micro_batches \(accumulation\) of dualpipe must be at least 8",
        ),
        (lambda: timeline("1f1b", 4, 8, times=PassTimes((1, 2))), "forward has 2 values for 4"),
        (
            lambda: timeline("1f1b", 2, 8, times=PassTimes(weight=3)),
            "weight 3 is part of backward",
        ),
        (lambda: PassTimes(forward=0), "forward must be above 0"),
        (lambda: PassTimes(backward=(1, float("nan"))), r"backward\[1\] must be finite"),
        (lambda: PassTimes(transfer=float("inf")), "transfer must be finite"),
        (lambda: timeline("1f1b", 4, 8).in_flight(4), "stage must be at most 3"),
        (lambda: bubble.in_flight("1f1b", 4, 8, 4), "stage must be at most 3"),
        (lambda: bubble.bubble_over_ideal(0, 1), "stages must be"),
        (lambda: bubble.bubble_fraction(1, 1, 0), "virtual_stages must be"),
        (lambda: bubble.bubble_time("1f1b", 2, 2, times=PassTimes((1, 2))), "2 values for 1 st"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
