"""Durations of passes: each matters, and bad ones are explained."""

import pytest
from every import every
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from probes import TIMES, Given, Probe, by_name

from course_lib.theory.pipelines import bubble
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.simulation import timeline


def test_the_gradients_of_the_weights_may_take_the_whole_backward_pass():
    (stage,) = PassTimes(backward=2.0, weight=2.0).of(1)
    assert (stage["I"], stage["W"]) == (0.0, 2.0)


# --- bubble ---


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
    least = 2 * stages - 1 if name == "zbv" else 1
    return stages, draw(st.integers(least, 24)), 1


@every("name", ["naive", "gpipe", "1f1b", "interleaved"])
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


@every("name", ["zb1p", "zbv"])
@given(p=SHORT, m=st.integers(1, 20), forward=DURATIONS, gradient=DURATIONS, weight=DURATIONS)
@settings(deadline=None)
def test_a_split_backward_pass_has_the_closed_form(name, p, m, forward, gradient, weight):
    if name == "zbv":
        m += 2 * p - 2
        assume(forward <= gradient and weight <= gradient <= 2 * weight)
    assume(weight <= min(forward, gradient) or name == "zbv")
    times = PassTimes(forward, gradient + weight, weight)
    line = timeline(name, p, m, times=times)
    assert line.idle == pytest.approx([bubble.bubble_time(name, p, m, times=times)] * p)


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


@every(
    ("name", "times"),
    [
        ("zb1p", (1, 3, 1.5)),  # a weight part longer than the forward pass
        ("zbv", (1.5, 2, 1)),  # a long F, a long W, a short W
        ("zbv", (1, 2.5, 1.5)),
        ("zbv", (1, 2, 0.5)),
    ],
)
def test_closed_forms_stop_where_they_should(name, times):
    """Here the simulated bubble, which is what counts, is larger than the form says."""
    times = PassTimes(*times)
    assert timeline(name, 4, 8, times=times).bubble_time > bubble.bubble_time(
        name, 4, 8, times=times
    )


@given(p=SHORT, v=st.integers(1, 4), size=st.integers(1, 9), data=st.data())
@settings(deadline=None)
def test_groups_of_any_allowed_size_have_the_closed_form(p, v, size, data):
    """All micro-batches in one group, though they be few, or groups of at least p."""
    m = size if size < p else size + data.draw(st.sampled_from([0, p, p + 1, size]))
    if m > size and (m % size or size) < p:
        size = m
    times = PassTimes(1, data.draw(st.sampled_from([1, 2, 3.5])))
    line = timeline("interleaved", p, m, v, group=size, times=times)
    closed = bubble.bubble_time("interleaved", p, m, v, group=size, times=times)
    assert line.idle == pytest.approx([closed] * p)
    for stage in range(p):
        held = bubble.in_flight("interleaved", p, m, stage, virtual_stages=v, group=size)
        assert held == pytest.approx(line.in_flight(stage))


SIZES = {"stages": 4, "micro_batches": 8, "virtual_stages": 1}
IN_TURNS = Given(3, {"name": "interleaved"}, before=2)


REFUSED = [
    (lambda: bubble.bubble_time("zb1p", 4, 8, times=PassTimes(1, 4, 3)), "weight 3 is too large"),
    (lambda: PassTimes(backward=2.0, weight=2.1).of(1), "give at most that"),
    (lambda: bubble.in_flight("1f1b", 4, 8, 4), "stage must be at most 3"),
    (lambda: bubble.bubble_time("1f1b", 2, 2, times=PassTimes((1, 2))), "2 values for 1 st"),
]
PROBES = by_name(
    Probe(
        bubble.bubble_time,
        SIZES | {"name": "naive", "times": None},
        {
            "name": "1f1b",
            "virtual_stages": IN_TURNS,
            "times": TIMES,
            # The bubble is the same for all groups, but without one 6 micro-batches are refused.
            "group": Given(6, {"name": "interleaved", "micro_batches": 6}),
        },
        refuses=True,
    ),
    Probe(
        bubble.in_flight,
        SIZES | {"name": "1f1b", "stage": 0},
        {
            "micro_batches": 3,
            "virtual_stages": IN_TURNS,
            "group": Given(8, {"name": "interleaved", "virtual_stages": 2}),
        },
    ),
)
