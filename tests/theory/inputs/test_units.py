"""GB and GiB, billions and millions."""

import pytest

from course_lib.theory.inputs import units


def test_gb_and_gib_are_seven_percent_apart():
    assert units.GIB / units.GB == pytest.approx(1.0737, abs=1e-4)
    assert units.gb(24_921_779_200) == pytest.approx(24.92, abs=0.005)
    assert units.gib(24_921_779_200) == pytest.approx(23.21, abs=0.005)


@pytest.mark.parametrize(
    ("size", "unit", "text"),
    [
        (0, "GB", "0 B"),
        (999, "GB", "999 B"),
        (1000, "GB", "1.00 kB"),
        (1000, "GiB", "1000 B"),
        (2**20, "GiB", "1.00 MiB"),
        (2**30, "GB", "1.07 GB"),
        (2**30, "GiB", "1.00 GiB"),
        (3 * 10**12, "GB", "3.00 TB"),
    ],
)
def test_format_bytes(size, unit, text):
    assert units.format_bytes(size, unit) == text


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), "5", True])
def test_format_bytes_refuses_what_is_no_size(size):
    with pytest.raises(ValueError, match="size_bytes"):
        units.format_bytes(size)


def test_format_bytes_names_the_nearest_unit():
    with pytest.raises(ValueError, match="did you mean 'GiB'"):
        units.format_bytes(1, "Gib")


@pytest.mark.parametrize(
    ("text", "count"),
    [("70b", 70 * 10**9), ("13B", 13 * 10**9), ("1.5B", 1_500_000_000), ("124M", 124_000_000)],
)
def test_parse_count_reads_billions_and_millions(text, count):
    assert units.parse_count(text) == count


@pytest.mark.parametrize("text", ["", "b", "-7b", "70 GB", "7x"])
def test_parse_count_refuses_other_text(text):
    with pytest.raises(ValueError, match="write it like"):
        units.parse_count(text)


def test_format_count():
    assert units.format_count(6_738_415_616) == "6.74B"
    assert units.format_count(124_439_808) == "124M"
    assert units.format_count(12) == "12"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (2.22e-9, "2.22 ns"),
        (47.6e-6, "47.6 µs"),
        (0.99999e-3, "1 ms"),
        (0.05246, "52.5 ms"),
        (12.34, "12.3 s"),
        (86_400, "86,400 s"),
    ],
)
def test_seconds(seconds, text):
    assert units.format_seconds(seconds) == text


def test_no_time_below_zero():
    with pytest.raises(ValueError, match="seconds must be at least 0"):
        units.format_seconds(-1)
