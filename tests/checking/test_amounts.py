"""Amounts as people write them."""

import pytest

from course_lib.checking.amounts import UNITS, amount


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("24.9 GB", 24.9e9),
        ("24.9GB", 24.9e9),
        ("1 GiB", 2**30),
        ("1,024", 1024),
        ("15 %", 0.15),
        ("3.2 ms", 0.0032),
        ("5 µs", 5e-6),
        ("2 h", 7200),
        ("-1.5e3", -1500),
        ("312 TFLOP/s", 312e12),
        (".5", 0.5),
    ],
)
def test_an_amount(text, number):
    assert amount(text) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "many", "3 apples", "GB", "1 2", "12x768x12", "0x10", "1e", "--1"]
)
def test_what_is_no_amount(text):
    assert amount(text) is None


def test_every_unit_is_read():
    for unit, size in UNITS.items():
        assert amount(f"2 {unit}") == pytest.approx(2 * size)
