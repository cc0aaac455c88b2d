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


@linux
def test_who_runs_or_sleeps_all_the_time():
    with watched() as meter:
        run(0.3)
    assert meter.percent > 80
    with watched() as meter:
        time.sleep(0.3)
    assert meter.percent < 20


def test_without_the_file_of_linux_it_is_the_time_on_a_processor():
    meter = Meter()
    meter._stat = None
    run(0.2)
    meter.look()
    assert 1 < meter.percent <= 130  # other threads of this process count as well


def test_a_byte_costs_something_and_twice_as_many_about_twice_as_much():
    sizes = (2**24, 2**27)
    small, large = (min(processor_s_per_byte(size) for _ in range(2)) for size in sizes)
    assert 1e-11 < large < 1e-7  # 0.01 to 100 s for each GB
    assert 0.05 < small / large < 20


def test_too_few_bytes_are_refused():
    with pytest.raises(ValueError, match="size_bytes"):
        processor_s_per_byte(1000)
