"""What kind of wrong an answer is, in a few words that do not tell the value."""

import math

import pytest

from course_lib.checking.values import kind_of_wrong


@pytest.mark.parametrize(
    ("given", "expected", "words"),
    [
        (24.9e9, 23.2e9 * 24.9e9 / (23.2e9 * 1024**3 / 1e9), "too large: GiB and GB"),
        (1000, 1024, "too small: KiB and kB"),
        (800, 100, "too large: bits or bytes?"),
        (15, 0.15, "too large: percent or fraction?"),
        (62.6e-3, 62.6, "too small: look at the unit"),
        (50, 100, "too small: exactly a factor of 2"),
        (99, 100, "too small, by less than 2 %: rounded too early, or one off?"),
        (130, 100, "too large, by less than half"),
        (700, 100, "too large, by less than a factor of 10"),
        (70_123, 100, "too large, by more than a factor of 10"),
        (-5, 5, "it has the wrong sign"),
        (0, 5, "0 is not it"),
        (5, 0, "too large"),
        (math.nan, 5, "it should be an ordinary number"),
        (10**400, 5, "it should be an ordinary number"),
        ([1, 2, 30], [1, 2, 3], "part 3 of 3: too large, by more"),
        ([1, 3, 2], [1, 2, 3], "the right parts in the wrong order, from part 2 on"),
        ([1], [1, 2], "too few parts"),
        ([1, 2, 3], [1, 2], "too many parts"),
        ({"a": 1, "b": 4}, {"a": 1, "b": 2}, "'b': too large: exactly a factor of 2"),
        ({"a": 1}, {"a": 1, "b": 2}, "nothing for 'b'"),
        ({"a": 1, "c": 2}, {"a": 1}, "more entries than asked for"),
        ("x", 3, "it should be a number"),
        (3, True, "it should be True or False"),
        ("a", "b", "it is not that"),
    ],
)
def test_the_kind_of_wrong(given, expected, words):
    assert kind_of_wrong(given, expected).startswith(words)


def test_the_value_is_never_told():
    for expected in (123.456, 98765, [12345, 6789], {"a": 4321.5}, "the answer"):
        for given in (1.5, -7, [1.5, 6789], {"a": 3}, "another"):
            said = kind_of_wrong(given, expected)
            assert not any(
                part in said for part in ("123.456", "98765", "12345", "4321", "the ans")
            )
