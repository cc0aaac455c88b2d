"""A call's time is the slowest rank's, and the fastest of the repeats counts."""

import time

import torch

from course_lib import launch
from course_lib.measure.times import collective_seconds


def slept():
    """Rank 1 sleeps twice as long as rank 0, and each call half as long as the one before."""
    rank = launch.init()
    naps = iter([0.4 * (rank.rank + 1), 0.2 * (rank.rank + 1), 0.1 * (rank.rank + 1)])
    return collective_seconds(lambda: time.sleep(next(naps)), 3, torch.device("cpu"))


def test_the_slowest_rank_of_the_fastest_call():
    first, second = launch.run(slept, ranks=2)
    assert first == second
    assert 0.2 <= first < 0.39
