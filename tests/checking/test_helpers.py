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


def refusal(expectation, *args, **kwargs):
    """The sentence of the `Wrong` that an expectation raises."""
    try:
        expectation(*args, **kwargs)
    except Wrong as wrong:
        return str(wrong)
    return pytest.fail(f"{expectation.__name__}{args} was taken")


def test_every_kind_of_number_is_a_number():
    for answer in (125, 125.0, np.int64(125), np.float32(125), torch.tensor(125), Fraction(125)):
        expect_number(answer, 125, "x")


def test_what_is_no_number_is_told_so():
    for answer in (True, "many", 1j, [125], math.sqrt, torch.tensor([125, 125])):
        said = refusal(expect_number, answer, 125, "x", unit="GB")
        assert said.startswith("wants a number in GB, got"), said


def test_a_wrong_number_is_refused():
    for answer in (124, 126, -125, 0, math.nan, math.inf, -math.inf, 10**400, Fraction(-(10**400))):
        for rel in (0.0, 0.001):
            said = refusal(expect_number, answer, 125, "of it", rel=rel)
            assert said.startswith("gave ") and "125" not in said.removeprefix("gave -125"), said


def test_a_number_too_large_for_a_float_is_shown_in_words():
    for answer in (10**400, -(10**5000)):
        said = refusal(expect_number, answer, 125, "x", unit="B")
        assert said.startswith("gave a number of more than 300 digits B, expected another answer")


def test_the_tolerance_is_relative_to_the_expected_value():
    expect_number(101, 100.0, "x", rel=0.01)
    expect_number(-101, -100.0, "x", rel=0.01)
    with pytest.raises(Wrong):
        expect_number(101.1, 100.0, "x", rel=0.01)
    with pytest.raises(Wrong):
        expect_number(5, math.inf, "x", rel=0.01)


def test_big_numbers_are_readable():
    with pytest.raises(
        Wrong, match="gave 1,000,000 B, expected another answer: too small: exactly"
    ):
        expect_number(10**6, 2 * 10**6, "x", unit="B")


def test_the_reason_waits_for_the_hints():
    with pytest.raises(Wrong) as refused:
        expect_number(3, 4, "of it")
    assert refused.value.because == "of it" and "of it" not in str(refused.value)


def test_a_rounded_answer_is_right_from_three_digits_on():
    for answer in (24.9e9, 24.92e9, 24_916_000_000, "24.9 GB", "24,920 MB"):
        expect_number(answer, 24_915_566_592, "x", unit="B")
    for answer in (25e9, 24.8e9, 2.49e9, "25 GB", "24.9 GiB", "24.9 MB"):
        with pytest.raises(Wrong):
            expect_number(answer, 24_915_566_592, "x", unit="B")
    expect_number("15.0 %", 0.15, "x")
    with pytest.raises(Wrong):
        expect_number(124, 125, "x")


def test_a_count_is_exact():
    for answer in (1430, 1429.4, "1.43e3"):
        said = refusal(expect_equal, (answer, 0.5), [1429, 0.5], "x", rel=0.01)
        assert "part 1 of 2: too" in said, said
    with pytest.raises(Wrong):
        expect_calls(lambda n: n / 7, [((10_000,), 1429)], "x")
    expect_number(1429 * (1 + 1e-15), 1429, "x")


def test_an_answer_is_read_in_the_unit_that_is_asked_for():
    expect_number("280 GB", 280.0, "x", unit="GB")
    assert refusal(expect_number, "140 GB", 280.0, "x", unit="GB").startswith("gave 140 GB, ")
    said = refusal(expect_number, "280 s", 280.0, "x", unit="GB")
    assert said == "wants a number in GB, got str '280 s'"
    expect_equal(["280 GB", 3], [280.0, 3.0], "x", unit="GB")
    expect_entries({"a": "18.3 ms"}, {"a": (18.3, "x")}, "a dict", each="ms", unit="ms")


def test_the_part_that_is_blamed_is_the_wrong_one():
    right = [705, 0.70922, 0.062667]
    for answer in ([705, 0.709, 0.063], [705, "71 %", "6.3 %"], [705.0, 0.71, "0.063"]):
        said = refusal(expect_equal, answer, right, "x", rel=5e-3)
        assert "part 3 of 3: too large, by less than 2 %" in said, said
    said = refusal(expect_equal, {"a": "71 %", "b": 2}, {"a": 0.70922, "b": 3}, "x", rel=5e-3)
    assert "'b': too small" in said, said


def test_a_decimal_comma_is_told_so():
    for answer in ("24,9 GB", "0,5", "1,5 s"):
        said = refusal(expect_number, answer, 25.0, "x", unit="GB")
        assert said.startswith(f"got {answer!r}: write a decimal point"), said


def test_lists_tuples_and_tensors_are_alike():
    for answer in ([1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2])):
        expect_equal(answer, [1, 2], "x")


def test_other_lists_are_refused():
    for answer in ([1], [1, 3], [2, 1], [1, 2, 3], [1, [2]], [1, "two"]):
        assert "expected another answer: " in refusal(expect_equal, answer, [1, 2], "x"), answer


def test_expect_equal_says_which_type_it_wants():
    with pytest.raises(Wrong, match="wants a list of two ints, got int 5"):
        expect_equal(5, [1, 2], "x", wants="a list of two ints")
    with pytest.raises(Wrong, match="wants a value of type dict, got list"):
        expect_equal([1], {"a": 1}, "x")


def test_expect_equal_compares_inside_with_a_tolerance():
    expect_equal({"a": [1.0001]}, {"a": [1.0]}, "x", rel=0.001)
    with pytest.raises(Wrong):
        expect_equal({"a": [1.01]}, {"a": [1.0]}, "x", rel=0.001)
    with pytest.raises(Wrong):
        expect_equal({"a": 1, "b": 2}, {"a": 1}, "x")


def test_yes_or_no_is_not_a_count():
    expect_equal(True, True, "x")
    with pytest.raises(Wrong):
        expect_equal(1, True, "x")


def test_a_choice_ignores_case_and_names_the_choices():
    expect_choice(" B ", "b", "x", ("a", "b"))
    with pytest.raises(Wrong, match="gave 'a', expected another answer: it is not that"):
        expect_choice("a", "b", "x", ("a", "b"))
    with pytest.raises(Wrong, match="wants one of 'a', 'b', got str 'c'"):
        expect_choice("c", "b", "x", ("a", "b"))
    with pytest.raises(Wrong, match="wants one of 'a', 'b', got int 1"):
        expect_choice(1, "b", "x", ("a", "b"))


def test_expect_parts():
    expect_parts([1, 2], 2, "two numbers")
    with pytest.raises(Wrong, match=r"wants two numbers, got 3 of them"):
        expect_parts((1, 2, 3), 2, "two numbers")
    with pytest.raises(Wrong, match="wants two numbers, got int 7"):
        expect_parts(7, 2, "two numbers")


def test_expect_whole_numbers():
    expect_whole_numbers([1, 2], "counts")
    expect_whole_numbers((), "counts")
    for answer in (5, "12", {1: 2}, [1, 2.0], [1, "2"], [True], [[1]]):
        said = refusal(expect_whole_numbers, answer, "counts")
        assert said.startswith("wants counts, got "), said


def test_expect_entries():
    right = {"a": (True, "it is"), "b": (2, "it counts")}
    expect_entries({"a": True, "b": 2, "more": 0}, right, "a dict", each="a value")
    expect_entries({"a": 1, "b": 2}, right, "a dict", each="a value")
    for answer, sentence in (
        ([1], "wants a dict, got list [1]"),
        ({"a": True}, "gave nothing for 'b', expected a value"),
        ({"a": 0, "b": 2}, "for 'a' it gave False, expected another answer: it is not that"),
        ({"a": 2, "b": 2}, "wants a value, got int 2"),
        (
            {"a": True, "b": 3},
            "for 'b' it gave 3, expected another answer: too large, by less than a factor of 10",
        ),
        ({"a": "x", "b": 2}, "wants a value, got str 'x'"),
    ):
        assert refusal(expect_entries, answer, right, "a dict", each="a value") == sentence
    with pytest.raises(Unanswered):
        expect_entries({"a": True, "b": ...}, right, "a dict", each="a value")
    near = {"a": (1.5, "three halves")}
    expect_entries({"a": 1.5 + 1e-6}, near, "a dict", each="a value", rel=1e-5)
    assert refusal(expect_entries, {"a": 1.5 + 1e-6}, near, "a dict", each="a value")


def test_expect_type():
    expect_type([1], list, "a list")
    with pytest.raises(Wrong, match="wants an int, got bool True"):
        expect_type(True, int, "an int")


def test_a_function_that_changes_its_arguments_cannot_spoil_a_case():
    case = [3, 1, 2]

    def spoil(items):
        items.sort()
        return items[0]

    expect_calls(spoil, [((case,), 1)], "x")
    assert case == [3, 1, 2]


def test_an_expected_none_is_not_todo():
    expect_calls(lambda x: None, [((1,), None)], "x")


def test_tensor_results_are_compared():
    expect_calls(lambda x: torch.tensor([x, x]), [((2,), [2, 2])], "x")
    with pytest.raises(Wrong):
        expect_calls(lambda x: torch.tensor([x, x + 1]), [((2,), [2, 2])], "x")


def test_expect_raises_wants_the_exception_and_the_word():
    def good(batch):
        raise ValueError("batch must be at least 1")

    expect_raises(good, (0,), ValueError, "x", naming="batch")
    with pytest.raises(Wrong, match="a message naming 'samples'"):
        expect_raises(good, (0,), ValueError, "x", naming="samples")
    with pytest.raises(Wrong, match=r"\(0\) gave 0, expected ValueError because x"):
        expect_raises(lambda batch: batch, (0,), ValueError, "x")
    with pytest.raises(Wrong, match=r"\(0\) raised ZeroDivisionError: .* because x"):
        expect_raises(lambda batch: 1 // batch, (0,), ValueError, "x")


def test_call_passes_results_on_and_marks_open_functions():
    assert call(lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(Unanswered):
        call(lambda: None)
    with pytest.raises(Wrong, match="wants a function, got int 3"):
        call(3)


def test_run_lets_a_function_return_nothing():
    assert run(lambda a: None, 1) is None
    with pytest.raises(Wrong, match="wants a function f\\(\\), got str 'x'"):
        run("x", signature="f()")


def test_only_what_the_learners_lines_raise_passes_through():
    def slip(batch):
        return 1 // batch

    with pytest.raises(ZeroDivisionError):
        run(slip, 0)
    for function in (lambda: 0, len, statistics.mean):
        said = refusal(run, function, 5, signature="f(x)")
        assert said.startswith("wants a function f(x), got the function"), said
        assert "(5) raised " in said, said
    said = refusal(expect_raises, lambda: 0, (5,), ValueError, "x", "f(x)")
    assert said.startswith("wants a function f(x), got the function <lambda>"), said
