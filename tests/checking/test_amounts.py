"""Amounts as people write them."""

import pytest

from course_lib.checking.values import UNITS, amount, split


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
        ("−1,234,567.5", -1_234_567.5),
    ],
)
def test_an_amount(text, number):
    assert amount(text) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "many", "3 apples", "GB", "1 2", "12x768x12", "0x10", "1e", "--1", "1e999"]
)
def test_what_is_no_amount(text):
    assert amount(text) is None


def test_every_unit_is_read():
    for unit, (_, size) in UNITS.items():
        assert amount(f"2 {unit}") == pytest.approx(2 * size)
        assert amount(f"2 {unit}", unit) == amount("2", unit) == 2


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("280 GB", "GB", 280),
        ("0.28 TB", "GB", 280),
        ("1.24 GiB", "GiB", 1.24),
        ("1 GiB", "GB", 1.073741824),
        ("18.3 ms", "s", 0.0183),
        ("34 days", "days", 34),
        ("48 h", "days", 2),
        ("15 %", "%", 15),
        ("4,096 tokens", "tokens", 4096),
        ("280 s", "GB", None),
        ("280 GB", "tokens", None),
        ("15 %", "GB", None),
    ],
)
def test_an_amount_in_the_unit_that_is_asked_for(text, unit, number):
    assert amount(text, unit) == (number if number is None else pytest.approx(number, rel=1e-12))


@pytest.mark.parametrize(
    "text", ["24,9 GB", "0,5", "1,5 s", "41,7", "1,0245", "1024,5", "0,500", "1,024,5"]
)
def test_a_decimal_comma_is_no_thousands_separator(text):
    with pytest.raises(ValueError, match="write a decimal point"):
        split(text)
