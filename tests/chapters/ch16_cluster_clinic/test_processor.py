"""The meter of running time, and the price of TCP."""

import sys
import time

import pytest

from course_lib.chapters.ch16_cluster_clinic.processor import Meter, processor_s_per_byte, watched

linux = pytest.mark.skipif(sys.platform != "linux", reason="other programs disturb it elsewhere")


def run(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def shown(work):
    with watched() as meter:
        work(0.3)
    return meter.percent


@linux
def test_who_runs_or_sleeps_all_the_time():
    assert shown(run) > 80
    # A thread that wakes up on a busy machine waits for a processor: that only adds to its share.
    assert min(shown(time.sleep) for _ in range(3)) < 20


def test_without_the_file_of_linux_it_is_the_time_on_a_processor():
    meter = Meter()
    meter._stat = None
    run(0.2)
    meter.look()
    assert 1 < meter.percent <= 130  # other threads of this process count as well


def test_a_byte_costs_something_and_few_or_many_about_the_same():
    sizes = (2**24, 2**27)
    small, large = (min(processor_s_per_byte(size) for _ in range(2)) for size in sizes)
    assert 1e-11 < large < 1e-7  # 0.01 to 100 s for each GB
    assert 0.05 < small / large < 20
    with pytest.raises(ValueError, match="size_bytes"):
        processor_s_per_byte(1000)
