"""The comparisons that checks are made of: what each takes, and the sentence of what it refuses."""

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_lib.checking import (
    Unanswered,
    Wrong,
    call,
    expect_calls,
    expect_choice,
    expect_entries,
    expect_equal,
    expect_number,
    expect_parts,
    expect_raises,
    expect_type,
    expect_whole_numbers,
    run,
)

GB, B, NEAR = {"unit": "GB"}, {"unit": "B"}, {"rel": 0.01}
RIGHT = {"a": (True, "it is"), "b": (2, "it counts")}
ENTRIES = (RIGHT, "a dict", "a value")
HALF = ({"a": (1.5, "three halves")}, "a dict", "a value")
PARTS = [705, 0.70922, 0.062667]


def good(batch):
    raise ValueError("batch must be at least 1")


# A call that is right: expectation, answer, what is expected, more arguments.
TAKEN = [
    *((expect_number, answer, 125) for answer in (125.0, np.int64(125), np.float32(125))),
    *((expect_number, answer, 125) for answer in (torch.tensor(125), Fraction(125), "125")),
    (expect_number, 101, 100.0, NEAR),
    (expect_number, -101, -100.0, NEAR),
    *((expect_number, answer, 24_915_566_592, B) for answer in (24.9e9, "24.9 GB", "24,920 MB")),
    (expect_number, "15.0 %", 0.15),
    (expect_number, 1429 * (1 + 1e-15), 1429),
    (expect_number, "280 GB", 280.0, GB),
    (expect_equal, ["280 GB", 3], [280.0, 3.0], GB),
    *(
        (expect_equal, answer, [1, 2])
        for answer in ((1, 2), np.array([1, 2]), torch.tensor([1, 2]))
    ),
    (expect_equal, {"a": [1.0001]}, {"a": [1.0]}, {"rel": 0.001}),
    (expect_equal, True, True),
]
# A call that is wrong, and how its sentence begins.
REFUSED = [
    *(
        (expect_number, answer, 125, GB, "wants a number in GB, got")
        for answer in (True, "many", 1j, [125], math.sqrt, torch.tensor([125, 125]))
    ),
    *(
        (expect_number, answer, 125, {"rel": rel}, "gave ")
        for answer in (124, 126, -125, 0, math.nan, -math.inf, Fraction(-(10**400)))
        for rel in (0.0, 0.001)
    ),
    (expect_number, -(10**5000), 125, B, "gave a number of more than 300 digits B, expected anoth"),
    (expect_number, 101.1, 100.0, NEAR, "gave 101.1"),
    (expect_number, 5, math.inf, NEAR, "gave 5"),
    (expect_number, 10**6, 2 * 10**6, B, "gave 1,000,000 B, expected another answer: too small: e"),
    *(
        (expect_number, answer, 24_915_566_592, B, "gave 2")
        for answer in (25e9, 24.8e9, "25 GB", "24.9 GiB", "24.9 MB")
    ),
    (expect_number, "140 GB", 280.0, GB, "gave 140 GB, "),
    (expect_number, "280 s", 280.0, GB, "wants a number in GB, got str '280 s'"),
    *(
        (expect_number, answer, 25.0, GB, f"got {answer!r}: write a decimal point")
        for answer in ("24,9 GB", "0,5")
    ),
    (expect_equal, (1430, 0.5), [1429, 0.5], NEAR, "gave (1430, 0.5), expected another answer: pa"),
    *(
        (expect_equal, answer, [1, 2], {}, "gave ")
        for answer in ([1], [1, 3], [2, 1], [1, 2, 3], [1, [2]], [1, "two"])
    ),
    (expect_equal, 5, [1, 2], {"wants": "a list of two ints"}, "wants a list of two ints, got int"),
    (expect_equal, [1], {"a": 1}, {}, "wants a value of type dict, got list"),
    (expect_equal, {"a": [1.01]}, {"a": [1.0]}, {"rel": 0.001}, "gave "),
    (expect_equal, {"a": 1, "b": 2}, {"a": 1}, {}, "gave "),
    (expect_equal, 1, True, {}, "wants a value of type bool, got int 1"),
]


@pytest.mark.parametrize("row", TAKEN)
def test_what_is_right_is_taken(row):
    expectation, answer, expected, more = (*row, {})[:4]
    expectation(answer, expected, "of it", **more)


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_wrong_is_refused_and_the_reason_waits_for_the_hints(row):
    expectation, answer, expected, more, words = row
    with pytest.raises(Wrong) as refused:
        expectation(answer, expected, "of it", **more)
    said = str(refused.value)
    assert said.startswith(words) and "of it" not in said
    assert refused.value.because == ("of it" if "expected another answer" in said else "")


def refusal(expectation, *args, **kwargs):
    """The sentence of the `Wrong` that an expectation raises, "" where it raises nothing."""
    try:
        expectation(*args, **kwargs)
    except Wrong as wrong:
        return str(wrong)
    return ""


def test_a_count_is_exact():
    assert refusal(expect_calls, lambda n: n / 7, [((10_000,), 1429)], "x")


def test_the_part_that_is_blamed_is_the_wrong_one():
    for answer in ([705, 0.709, 0.063], [705, "71 %", "6.3 %"], [705.0, 0.71, "0.063"]):
        said = refusal(expect_equal, answer, PARTS, "x", rel=5e-3)
        assert "part 3 of 3: too large, by less than 2 %" in said, said
    said = refusal(expect_equal, {"a": "71 %", "b": 2}, {"a": 0.70922, "b": 3}, "x", rel=5e-3)
    assert "'b': too small" in said, said


SENTENCES = [
    (expect_choice, (" B ", "b", "x", ("a", "b")), ""),
    (expect_choice, ("a", "b", "x", ("a", "b")), "gave 'a', expected another answer: it is not th"),
    (expect_choice, ("c", "b", "x", ("a", "b")), "wants one of 'a', 'b', got str 'c'"),
    (expect_choice, (1, "b", "x", ("a", "b")), "wants one of 'a', 'b', got int 1"),
    (expect_parts, ([1, 2], 2, "two numbers"), ""),
    (expect_parts, ((1, 2, 3), 2, "two numbers"), "wants two numbers, got 3 of them"),
    (expect_parts, (7, 2, "two numbers"), "wants two numbers, got int 7"),
    *((expect_whole_numbers, (answer, "counts"), "") for answer in ([1, 2], ())),
    *(
        (expect_whole_numbers, (answer, "counts"), "wants counts, got ")
        for answer in (5, "12", {1: 2}, [1, 2.0], [1, "2"], [True], [[1]])
    ),
    (expect_type, ([1], list, "a list"), ""),
    (expect_type, (True, int, "an int"), "wants an int, got bool True"),
    (expect_entries, ({"a": True, "b": 2, "more": 0}, *ENTRIES), ""),
    (expect_entries, ({"a": 1, "b": 2}, *ENTRIES), ""),
    (expect_entries, ([1], *ENTRIES), "wants a dict, got list [1]"),
    (expect_entries, ({"a": True}, *ENTRIES), "gave nothing for 'b', expected a value"),
    (expect_entries, ({"a": 0, "b": 2}, *ENTRIES), "for 'a' it gave False, expected another answe"),
    (expect_entries, ({"a": 2, "b": 2}, *ENTRIES), "wants a value, got int 2"),
    (expect_entries, ({"a": True, "b": 3}, *ENTRIES), "for 'b' it gave 3, expected another answer"),
    (expect_entries, ({"a": 1.5 + 1e-6}, *HALF, 1e-5), ""),
    (expect_entries, ({"a": 1.5 + 1e-6}, *HALF), "for 'a' it gave 1.5, expected another answer"),
    (expect_entries, ({"a": "18.3 ms"}, {"a": (18.3, "x")}, "a dict", "ms", 0.0, "ms"), ""),
    (expect_calls, (lambda x: None, [((1,), None)], "x"), ""),
    (expect_calls, (lambda x: torch.tensor([x, x]), [((2,), [2, 2])], "x"), ""),
    (expect_calls, (lambda x: torch.tensor([x, x + 1]), [((2,), [2, 2])], "x"), "<lambda>(2) gave"),
    (expect_raises, (good, (0,), ValueError, "x", "", "batch"), ""),
    (
        expect_raises,
        (good, (0,), ValueError, "x", "", "samples"),
        "good(0) gave the message 'batch must be at least 1', expected a message naming 'samples'",
    ),
    (
        expect_raises,
        (lambda batch: batch, (0,), ValueError, "x"),
        "<lambda>(0) gave 0, expected ValueError because x",
    ),
    (
        expect_raises,
        (lambda batch: 1 // batch, (0,), ValueError, "x"),
        "<lambda>(0) raised ZeroDivisionError: ",
    ),
    (
        expect_raises,
        (lambda: 0, (5,), ValueError, "x", "f(x)"),
        "wants a function f(x), got the function <lambda>",
    ),
    (call, (3,), "wants a function, got int 3"),
    (run, ("x",), "wants a function, got str 'x'"),
    *((run, (function, 5), "wants a function, got the fun") for function in (len, statistics.mean)),
]


@pytest.mark.parametrize(("expectation", "arguments", "words"), SENTENCES)
def test_each_has_its_sentence(expectation, arguments, words):
    said = refusal(expectation, *arguments)
    assert said.startswith(words) and bool(said) == bool(words), said


def test_what_is_open_is_unanswered():
    for expectation, arguments in (
        (expect_entries, ({"a": True, "b": ...}, *ENTRIES)),
        (call, (lambda: None,)),
    ):
        with pytest.raises(Unanswered):
            expectation(*arguments)


def test_call_and_run_pass_on_what_comes():
    assert call(lambda a, b: a + b, 1, 2) == 3
    assert run(lambda a: None, 1) is None
    with pytest.raises(ZeroDivisionError):
        run(lambda batch: 1 // batch, 0)


def test_a_function_that_changes_its_arguments_cannot_spoil_a_case():
    case = [3, 1, 2]

    def spoil(items):
        items.sort()
        return items[0]

    expect_calls(spoil, [((case,), 1)], "x")
    assert case == [3, 1, 2]
