"""Memory that other people measured, as this library predicts it: see measured_runs.py."""

import statistics
from dataclasses import replace

from measured_runs import fitted_ratio, left_out, memory_range, predicted_bytes, runs

from course_lib.theory.memory.peak import RESERVED_OVER_ALLOCATED

MEMORY = [run for run in runs() if run.category == "memory"]


def within(errors, limit):
    """The part of the errors that is at most `limit`."""
    return sum(abs(error) <= limit for error in errors) / len(errors)


def test_every_run_has_a_framework():
    assert len(MEMORY) == 29
    assert {run.framework for run in MEMORY} == {
        "torchtitan",
        "thunder",
        "torchtune",
        "megatron-deepspeed",
    }


def test_the_one_fitted_number_is_the_median_of_torchtitan_in_twentieths():
    torchtitan = [run for run in MEMORY if run.framework == "torchtitan"]
    assert round(20 * fitted_ratio(torchtitan)) / 20 == RESERVED_OVER_ALLOCATED
    each = sorted(fitted_ratio([run]) for run in torchtitan)
    assert (len(each), round(each[0], 2), round(each[-1], 2)) == (16, 1.00, 1.25)


def test_measured_memory_is_predicted():
    errors = [predicted_bytes(run) / run.bytes - 1 for run in MEMORY]
    assert within(errors, 0.1) >= 0.95
    assert round(statistics.median(map(abs, errors)), 3) == 0.044  # as section 4.3 says
    assert abs(statistics.median(errors)) < 0.04
    assert max(map(abs, errors)) < 0.16


def test_a_source_is_predicted_from_the_others():
    """The ratio of reserved bytes is fitted without the source whose runs are predicted."""
    errors = left_out(MEMORY).values()
    assert within(errors, 0.1) >= 0.8
    assert abs(statistics.median(errors)) < 0.05


def test_an_unknown_framework_gets_a_range():
    run = next(run for run in MEMORY if run.id == "mem.torchtitan.8b.cp1")
    unknown = replace(run, source="somebody's own loop")
    smallest, largest = memory_range(unknown)
    assert smallest < predicted_bytes(unknown) <= largest
    assert smallest <= predicted_bytes(run) <= largest
    assert len(set(memory_range(run))) == 1
