"""The prefetch demo: its steps have the tasks of the theory, and never less time than the naps."""

from collections import Counter

import pytest

from course_lib import demos
from course_lib.demos import prefetch


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_tasks_are_those_of_the_theory(ranks):
    small = {"layers": 3, "numbers": 6000, "forward_ms": 5.0}
    result = demos.run("prefetch", ranks=ranks, stream=False, **small)
    off, on = result.lanes
    for lanes in (off, on):
        measured = Counter((task.what, task.unit) for task in lanes.measured)
        # A nap of no time, the root's, is not noted.
        predicted = Counter((it.what, it.unit) for it in lanes.predicted if it.end_s > it.start_s)
        assert measured == predicted
        asked = [(task.what, task.unit) for task in lanes.measured if task.lane == "messages"]
        expected = [(task.what, task.unit) for task in lanes.predicted if task.lane == "messages"]
        assert asked == expected
        assert lanes.measured_s > 3 * 0.015
    # Layer 2 is asked for before layer 1 computes, or only after it.
    for lanes in (off, on):
        asked_s = next(it.asked_s for it in lanes.measured if (it.what, it.unit) == ("gather", 2))
        nap = next(it for it in lanes.measured if (it.what, it.unit) == ("forward", 1))
        assert (asked_s < nap.start_s) == lanes.prefetch == (asked_s < nap.end_s)
    assert "alone, 0.0 MB" in result.report() and "prefetch on" in result.report()


def test_one_rank_is_refused():
    with pytest.raises(Exception, match="start at least 2"):
        demos.run("prefetch", ranks=1, stream=False)


def test_options_are_checked():
    with pytest.raises(ValueError, match="forward_ms must be above 0"):
        prefetch.Options(forward_ms=0)
