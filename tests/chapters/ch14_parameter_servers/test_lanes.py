"""When functions ran: their results and errors unchanged, one clock for all lanes."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from course_lib.chapters.ch14_parameter_servers.lanes import Lanes


def test_a_watched_function_returns_what_it_returned():
    lanes = Lanes()
    assert lanes.watched("a", divmod)(7, 3) == (2, 1)
    assert lanes.watched("a", int)("11", base=2) == 3
    assert len(lanes.rows["a"]) == 2


def test_lanes_share_one_clock_across_threads():
    lanes = Lanes()
    sleep, rest = lanes.watched("sleep", time.sleep), lanes.watched("rest", time.sleep)
    with ThreadPoolExecutor(max_workers=1) as thread:
        asleep = thread.submit(sleep, 0.05)
        time.sleep(0.01)
        rest(0.01)
        asleep.result()
    (first,), (second,) = lanes.rows["sleep"], lanes.rows["rest"]
    assert first.at < second.at < second.until and first.until - first.at >= 0.05
    assert lanes.lengths_s("sleep")[0] == first.until - first.at
    assert lanes.seconds == pytest.approx(max(first.until, second.until) - first.at)
