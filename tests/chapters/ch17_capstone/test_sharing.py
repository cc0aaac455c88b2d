"""Processes on one core, beside what the weighted shares predict."""

import pytest

from course_lib.chapters.ch17_capstone import sharing
from course_lib.chapters.ch17_capstone.streams import Task, shared_timeline

needs_binding = pytest.mark.skipif(not sharing.can_share(), reason="cannot bind to a core here")


@needs_binding
@pytest.mark.parametrize(
    ("nice", "weight", "work_s"), [(0, 1024, (0.3, 0.1)), (5, 335, (0.4, 0.08))]
)
def test_a_process_that_gives_way_takes_as_much_longer_as_predicted(nice, weight, work_s):
    tasks = [
        Task("rude", "a", work_s[0], {"core": 1}),
        Task("polite", "b", work_s[1], {"core": 1}, weight=weight / 1024),
    ]
    predicted = shared_timeline(tasks)
    rude, polite = sharing.slowdowns(work_s, (0, nice))
    assert polite == pytest.approx(predicted.slowdown("polite"), rel=0.3)
    assert rude == pytest.approx(predicted.slowdown("rude"), rel=0.3)


@needs_binding
def test_alone_nothing_is_slower():
    assert sharing.slowdowns([0.05], [0]) == [pytest.approx(1, rel=0.01)]


def test_one_niceness_for_each_process():
    with pytest.raises(ValueError, match="work_s has 2 numbers and nice 1"):
        sharing.slowdowns([1, 2], [0])
