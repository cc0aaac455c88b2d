"""Numbers in words, and gaps judged."""

import math

import pytest

from course_lib.checking.gaps import gap_of, how_far, in_words, judged, percent


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1024, "1,024 B"),
        (0, "0 B"),
        (2.5, "2.5 B"),
        (-0.125, "-0.125 B"),
        (1234567.5, "1,234,568 B"),
        (999999.5, "1,000,000 B"),
        (3.14e24, "3.14 × 10²⁴ B"),
        (1e21, "10²¹ B"),
        (1.25e-6, "1.25 × 10⁻⁶ B"),
        (10**15 - 1, "999,999,999,999,999 B"),
    ],
)
def test_a_number_is_written_without_an_e(value, words):
    assert in_words(value, "B") == words


def test_a_gap_is_signed_and_never_lost_in_rounding():
    assert [percent(gap) for gap in (0, 0.031, -0.5, 1e-12, math.inf)] == [
        "0 %",
        "+3.1 %",
        "-50 %",
        "under 0.001 %",
        "+inf %",
    ]
    assert percent(gap_of(2, 25_000)) == "+1,249,900 %"


def test_a_gap_is_judged_by_what_was_allowed():
    assert judged(0, 0) == ("no gap", "Exact: the measurement is what theory says.")
    assert judged(1e-12, 1e-9)[0] == "no gap" and "less than 0.001 %" in judged(1e-12, 1e-9)[1]
    assert judged(0.031, 0.05) == (
        "3.1 %",
        "Close: measured 3.1 % above theory (up to 5 % allowed).",
    )
    assert judged(-0.2, 0.05)[1].startswith("Too far: measured 20 % below theory")
    assert judged(math.inf, 0.5)[0] == "∞ %"
    assert judged(0.2, None) == (
        "20 %",
        "Measured 20 % above theory. A time is shown and not judged.",
    )


def test_a_large_factor_is_written_out():
    assert how_far(5e6, 2) == "2,500,000 × too high"
