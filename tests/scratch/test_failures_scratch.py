"""Runs that fail: every second is told once, and what is saved stays saved."""

import itertools

import pytest

from course_lib.scratch import recovery

RUN = {"interval_s": 100.0, "save_s": 5.0, "mtbf_s": 400.0, "restart_s": 30.0}


def of_kind(spans, kind):
    return [span for span in spans if span.kind == kind]


@pytest.mark.parametrize("seed", range(5))
def test_every_second_is_told_once_and_all_work_is_saved(seed):
    spans = recovery.run(950.0, **RUN, seed=seed)
    assert spans[0].start_s == 0
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(spans))
    worked = [span.end_s - span.start_s for span in of_kind(spans, "work")]
    assert sum(worked) == pytest.approx(950)
    assert len(worked) == len(of_kind(spans, "save")) == 10  # the last interval is half as long


def test_without_failures_only_saving_costs():
    spans = recovery.run(1000.0, interval_s=100.0, save_s=5.0, mtbf_s=1e15)
    assert {span.kind for span in spans} == {"work", "save"}
    assert recovery.wasted(spans) == pytest.approx(0.05)


def test_a_failure_costs_what_was_not_saved_and_a_restart():
    spans = recovery.run(2000.0, **RUN, seed=1)
    lost, restarts = of_kind(spans, "lost"), of_kind(spans, "restart")
    assert len(lost) > 0 and len(restarts) >= len(lost)
    assert all(span.end_s - span.start_s < 105 for span in lost)
    assert recovery.wasted(spans) == pytest.approx(spans[-1].end_s / 2000 - 1)


def test_the_seed_decides():
    first, again, other = (recovery.run(2000.0, **RUN, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
