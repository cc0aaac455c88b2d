"""GB and GiB, billions and millions."""

import pytest
from every import every
from probes import Probe, by_name
from refused import rows

from course_lib.theory.inputs import units
from course_lib.theory.inputs.units import format_flop


def test_gb_and_gib_are_seven_percent_apart():
    assert units.GIB / units.GB == pytest.approx(1.0737, abs=1e-4)
    assert units.gb(24_921_779_200) == pytest.approx(24.92, abs=0.005)
    assert units.gib(24_921_779_200) == pytest.approx(23.21, abs=0.005)


@every(
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


@every(
    ("text", "count"),
    [("70b", 70 * 10**9), ("13B", 13 * 10**9), ("1.5B", 1_500_000_000), ("124M", 124_000_000)],
)
def test_parse_count_reads_billions_and_millions(text, count):
    assert units.parse_count(text) == count


def test_format_count():
    assert units.format_count(6_738_415_616) == "6.74B"
    assert units.format_count(124_439_808) == "124M"
    assert units.format_count(12) == "12"


@every(
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


@every(("power", "text"), [(12, "10¹²"), (-5, "10⁻⁵"), (0, "10⁰"), (-307, "10⁻³⁰⁷")])
def test_powers_of_ten(power, text):
    assert units.power_of_ten(power) == text


def test_an_amount_of_computation_is_not_a_rate():
    assert format_flop(196_608_000_000_000) == "196.6 TFLOP"
    assert format_flop(3.14e23) == "314 ZFLOP"
    assert format_flop(12) == "12 FLOP"


@every(
    ("value", "digits", "text"),
    [
        (0, 3, "0"),
        (3.14159, 3, "3.14"),
        (999.4, 3, "999"),
        (1258.4, 3, "1,258"),
        (1258.4, 5, "1,258.4"),
        (3e10, 3, "30,000,000,000"),
        (-0.5, 3, "-0.5"),
        (1.234e-7, 3, "0.000000123"),
        (1e-7, 3, "0.0000001"),
    ],
)
def test_format_number_writes_all_digits(value, digits, text):
    assert units.format_number(value, digits) == text


REFUSED = [
    *rows(units.format_bytes, [-1, float("nan"), float("inf"), "5", True], "size_bytes"),
    *rows(units.parse_count, ["", "b", "-7b", "70 GB", "7x"], "write it like"),
    *rows(units.format_number, [float("nan"), float("inf"), "5", True], "value"),
]
PROBES = by_name(
    Probe(units.format_number, {"value": 1.2345}),
    Probe(units.format_duration, {"seconds": 1.0}),
    Probe(units.format_seconds, {"seconds": 1.0}),
)
