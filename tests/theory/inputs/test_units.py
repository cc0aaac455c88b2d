"""GB and GiB, billions and millions."""

import pytest
from every import every
from probes import Probe, by_name
from refused import rows

from course_lib.theory.inputs import units


def test_gb_and_gib_are_seven_percent_apart():
    assert units.GIB / units.GB == pytest.approx(1.0737, abs=1e-4)
    assert units.gb(24_921_779_200) == pytest.approx(24.92, abs=0.005)
    assert units.gib(24_921_779_200) == pytest.approx(23.21, abs=0.005)


@every(
    ("call", "arguments", "result"),
    [
        (units.format_bytes, (0, "GB"), "0 B"),
        (units.format_bytes, (999, "GB"), "999 B"),
        (units.format_bytes, (1000, "GB"), "1.00 kB"),
        (units.format_bytes, (1000, "GiB"), "1000 B"),
        (units.format_bytes, (2**20, "GiB"), "1.00 MiB"),
        (units.format_bytes, (2**30, "GB"), "1.07 GB"),
        (units.format_bytes, (2**30, "GiB"), "1.00 GiB"),
        (units.format_bytes, (3 * 10**12, "GB"), "3.00 TB"),
        (units.parse_count, ("70b",), 70 * 10**9),
        (units.parse_count, ("1.5B",), 1_500_000_000),
        (units.parse_count, ("124M",), 124_000_000),
        (units.format_count, (6_738_415_616,), "6.74B"),
        (units.format_count, (124_439_808,), "124M"),
        (units.format_count, (12,), "12"),
        (units.format_seconds, (0,), "0 ns"),
        (units.format_seconds, (2.22e-9,), "2.22 ns"),
        (units.format_seconds, (47.6e-6,), "47.6 µs"),
        (units.format_seconds, (0.99999e-3,), "1 ms"),
        (units.format_seconds, (0.05246,), "52.5 ms"),
        (units.format_seconds, (12.34,), "12.3 s"),
        (units.format_seconds, (86_400,), "86,400 s"),
        (units.power_of_ten, (12,), "10¹²"),
        (units.power_of_ten, (-307,), "10⁻³⁰⁷"),
        (units.power_of_ten, (0,), "10⁰"),
        (units.format_flop, (196_608_000_000_000,), "196.6 TFLOP"),
        (units.format_flop, (3.14e23,), "314 ZFLOP"),
        (units.format_flop, (12,), "12 FLOP"),
        (units.format_number, (0, 3), "0"),
        (units.format_number, (999.4, 3), "999"),
        (units.format_number, (1258.4, 3), "1,258"),
        (units.format_number, (1258.4, 5), "1,258.4"),
        (units.format_number, (3e10, 3), "30,000,000,000"),
        (units.format_number, (-0.5, 3), "-0.5"),
        (units.format_number, (1.234e-7, 3), "0.000000123"),
    ],
)
def test_numbers_are_written_and_read(call, arguments, result):
    assert call(*arguments) == result


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
