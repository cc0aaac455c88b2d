"""The demo of local SGD: equal with an average each time, and fewer bytes with fewer averages."""

import pytest
from together import runs

from course_lib.demos.shared.comparison import LOSS_TOLERANCE, loss_gaps

SMALL = {"model": "1x16x2", "steps": 6, "sequence": 8}


@pytest.fixture(scope="module")
def results():
    cases = {every: {"every": every, "batch": 7} for every in (1, 2, 3)}
    return {ranks: runs("local_sgd", cases, ranks, **SMALL) for ranks in (1, 2, 3)}


def test_an_average_each_time_is_one_process(results):
    for ranks, cases in results.items():
        assert all(bool(result.versions[0].sent) == (ranks > 1) for result in cases.values())
        assert max(loss_gaps(cases[1].losses, cases[1].losses_one_process)) <= LOSS_TOLERANCE


def test_fewer_averages_are_another_algorithm_with_fewer_bytes(results):
    for ranks in (2, 3):
        each = results[ranks][1].versions[0].sent["all-reduce"].size_bytes
        for every in (2, 3):
            result = results[ranks][every]
            assert result.sent == (6 // every, 6 // every * each)
            assert max(loss_gaps(result.losses, result.losses_one_process)) > 1e-4
    assert "a rank sends" in results[2][2].report()
    assert results[1][3].sent == (0, 0)
