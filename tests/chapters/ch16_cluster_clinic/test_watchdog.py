"""The watchdog's message: which call, on which rank, and what the lines of several ranks say."""

import pytest

from course_lib.chapters.ch16_cluster_clinic.logs import Timeout, timeout_signs, timeouts
from course_lib.clinic.recorded import output


def words(found):
    return " | ".join(sign.sentence for sign in timeout_signs(found))


def test_two_ranks_in_different_calls():
    found = timeouts(output("watchdog").text)
    assert found == (
        Timeout(7, 80078, "BROADCAST", 5056, 600.0),
        Timeout(3, 80078, "ALLREDUCE", 2_106_881, 600.0),
    )
    assert "rank 7 in call 80078, BROADCAST of 5,056 numbers; rank 3 in call" in words(found)
    assert "a branch that only some ranks take" in words(found)


def test_all_in_one_call():
    told = words(timeouts(output("watchdog_same").text))
    assert told.startswith("All waited for 600 s: ranks 0, 1 and 2 in call 808, ALLREDUCE of 9,80")
    assert "a rank without such a line" in told


def test_one_size_or_one_number_makes_another_call():
    one = Timeout(0, 5, "ALLREDUCE", 100, 600.0)
    for other in (Timeout(1, 5, "ALLREDUCE", 101, 600.0), Timeout(1, 6, "ALLREDUCE", 100, 600.0)):
        assert "different calls" in words([one, other])


def test_a_rank_that_repeats_itself_counts_once():
    text = output("watchdog").text
    assert timeouts(text + text) == timeouts(text)
    assert timeout_signs([]) == []


@pytest.mark.parametrize("text", ["", "[Rank 3] NCCL watchdog thread started!"])
def test_a_text_without_a_timeout_is_refused(text):
    with pytest.raises(ValueError, match="Watchdog caught collective operation timeout"):
        timeouts(text)
