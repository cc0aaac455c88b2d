"""The checks of inputs: what passes, and the sentence that refuses the rest."""

from dataclasses import dataclass, replace

import pytest

from course_lib.validation import (
    DERIVED,
    choice,
    derive,
    divisible,
    flag,
    fraction,
    listed,
    number,
    text,
    told,
    whole,
)

NAN, INFINITE = float("nan"), float("inf")
ALLOWED = [
    (whole, ("dp", 1)),
    (whole, ("dp", 10**18)),
    (whole, ("dp", 0, 0)),
    (whole, ("dp", 3, 3, 3)),
    (number, ("x", -7)),
    (number, ("x", 1e18)),
    (number, ("x", 1.5, 1.0)),
    (number, ("x", 1.0, None, 1.0)),
    (number, ("x", 2.0, None, None, 2.0)),
    (divisible, ("heads", 8, "tp", 4)),
    (choice, ("unit", "GB", ("GB", "GiB"))),
    (choice, ("unit", "GB", iter(["GB"]))),
    (fraction, ("part", 1)),
    (fraction, ("part", 1e-9)),
    (number, ("x", 1e-320, None, 0)),
    (listed, ("samples", 1_000_000, "take fewer")),
    (text, ("name", "")),
    (flag, ("dropout", True)),
    (flag, ("dropout", False)),
]
REFUSED = {
    "dp must be a whole number, got 2.0: give an int such as 1": (whole, ("dp", 2.0)),
    "dp must be a whole number, got True: give an int such as 0": (whole, ("dp", True, 0)),
    "dp must be a whole number, got '4': give an int such as 1": (whole, ("dp", "4")),
    "dp must be at least 1, got 0: give 1 or more": (whole, ("dp", 0)),
    "tp must be at least 5, got 4: give 5 or more": (whole, ("tp", 4, 5)),
    "tp must be at most 8, got 9: look for a typo": (whole, ("tp", 9, 1, 8)),
    "tp must be at most 1e+18, got 1e+30: look for a typo": (whole, ("tp", 10**30)),
    "tp must be at most 1e+18, got 10^400: look for a typo": (whole, ("tp", 10**400)),
    "tp must be at least 1, got -10^5000: give 1 or more": (whole, ("tp", -(10**5000))),
    "x must be at most 1e+18, got 10^400: look for a typo": (number, ("x", 10**400)),
    "x must be at least 1e-30, got 1e-320: look for a typo": (number, ("x", 1e-320, 0)),
    "heads 10^400 is not divisible by tp 3: take heads 10^400, or another value of tp that "
    "divides 10^400": (divisible, ("heads", 10**400, "tp", 3)),
    "samples 9000000 is above 1,000,000, the longest list made: take fewer": (
        listed,
        ("samples", 9_000_000, "take fewer"),
    ),
    "name must be a str of a line, got None: give a few words": (text, ("name", None)),
    "x must be a number, got '1': give an int or a float": (number, ("x", "1")),
    "x must be a number, got False: give an int or a float": (number, ("x", False)),
    "x must be finite, got nan: give an ordinary number": (number, ("x", NAN)),
    "y must be finite, got -inf: give an ordinary number": (number, ("y", -INFINITE)),
    "x must be above 2.0, got 2.0: give a larger number": (number, ("x", 2.0, 2.0)),
    "x must be at least 2.0, got 1.0: give a larger number": (number, ("x", 1.0, None, 2.0)),
    "x must be at most 1e+18, got 2e+18: look for a typo": (number, ("x", 2e18)),
    "x must be at most 3, got -4: look for a typo": (number, ("x", -4, None, None, 3)),
    "heads 9 is not divisible by tp 2: take heads 8, or another value of tp that divides 9": (
        divisible,
        ("heads", 9, "tp", 2),
    ),
    "layers 2 is not divisible by pp 5: take layers 5, or another value of pp that divides 2": (
        divisible,
        ("layers", 2, "pp", 5),
    ),
    "unit 'Gb' is not one of GB, GiB: did you mean 'GB'?": (choice, ("unit", "Gb", ("GB", "GiB"))),
    "size 7 is not one of GB, GiB: choose one of them": (choice, ("size", 7, ("GB", "GiB"))),
    "part must be above 0, got 0: give a larger number": (fraction, ("part", 0)),
    "part must be at most 1, got 80: give a fraction, 0.8 for 80 %": (fraction, ("part", 80)),
    "dropout must be True or False, got 1: give one of the two": (flag, ("dropout", 1)),
}


def test_what_is_allowed_passes():
    for check, arguments in ALLOWED:
        check(*arguments)


def test_the_rest_is_refused_by_one_sentence():
    sentences = {}
    for sentence, (check, arguments) in REFUSED.items():
        with pytest.raises(ValueError) as refusal:
            check(*arguments)
        sentences[sentence] = str(refusal.value)
    assert sentences == {sentence: sentence for sentence in REFUSED}


def test_a_value_is_told_in_one_short_line():
    assert told([1, "a"]) == "[1, 'a']" and told(10**18) == "1" + 18 * "0"
    for value in ("x" * 10**6, list(range(10**6)), 10**20, -(10**9999), "a\nb", {"k": "v" * 999}):
        assert len(told(value)) < 300 and "\n" not in told(value)


@dataclass(frozen=True)
class Box:
    """A width, and a height that is as large unless it is given."""

    width: int
    height: int = DERIVED
    depth: int = DERIVED

    def __post_init__(self) -> None:
        derive(self, height=self.width)
        derive(self, depth=2 * self.height)


def test_a_field_that_was_left_out_is_derived_and_stays_when_the_record_is_replaced():
    assert Box(3) == Box(3, 3, 6) and Box(3, depth=1) == Box(3, 3, 1)
    assert (Box(3, 0).height, Box(3, 0).depth) == (0, 0)  # given, although it counts as false
    assert replace(Box(3), width=5) == Box(5, 3, 6)
