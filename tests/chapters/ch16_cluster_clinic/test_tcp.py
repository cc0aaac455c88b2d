"""The processor's price of TCP."""

import pytest

from course_lib.chapters.ch16_cluster_clinic.tcp import processor_s_per_byte


def test_a_byte_costs_something_and_twice_as_many_about_twice_as_much():
    sizes = (2**24, 2**27)
    small, large = (min(processor_s_per_byte(size) for _ in range(2)) for size in sizes)
    assert 1e-11 < large < 1e-7  # 0.01 to 100 s for each GB
    assert 0.05 < small / large < 20


def test_too_few_bytes_are_refused():
    with pytest.raises(ValueError, match="size_bytes"):
        processor_s_per_byte(1000)
