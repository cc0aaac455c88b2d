import math
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_lib.checking import Prediction, expect, predict, progress


def test_without_an_answer_the_courses_prediction_is_taken_and_said(capsys):
    for yours in (None, ...):
        prediction = predict("k", "How much?", course=16, yours=yours, unit="GB")
        assert prediction == Prediction("k", 16, None, "GB")
        assert prediction.value == 16
        out = capsys.readouterr().out
        assert "How much?" in out and "course's own is taken: 16 GB" in out
        assert progress.read()["predictions"] == {}


def test_the_first_number_stays_and_later_ones_are_revised(capsys):
    first = predict("k", "?", course=16, yours=12, unit="GB")
    assert (first.value, first.yours, first.course) == (12, 12, 16)
    assert predict("k", "?", course=16, yours=14, unit="GB").yours == 12
    assert predict("k", "?", course=16, yours=14, unit="GB").yours == 12
    record = progress.read()["predictions"]["k"]
    assert record["yours"] == 12 and record["unit"] == "GB" and record["at"].startswith("20")
    assert [revision["yours"] for revision in record["revised"]] == [14]
    assert "change to 14 GB is recorded as revised" in capsys.readouterr().out


def test_a_prediction_that_is_no_number_gets_a_sentence():
    for value, remedy in (
        ("12 GB", "write only the number, no unit"),
        (True, "give an int or a float"),
        ([12], "give an int or a float"),
        (torch.tensor(12.0), "give an int or a float"),
        (math.nan, "give an ordinary number"),
        (math.inf, "give an ordinary number"),
    ):
        for named, numbers in (("yours", (16, value)), ("course", (value, None))):
            with pytest.raises(ValueError, match=f"{named} must be .*: {remedy}"):
                predict("k", "?", course=numbers[0], yours=numbers[1])


def test_every_kind_of_number_can_be_predicted():
    for value in (3, 3.0, 3e24, np.int64(3), np.float32(3), Fraction(3)):
        assert predict("k", "?", course=value).value == value


def test_a_prediction_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Prediction("k", 1).course = 2


def test_expect_prints_both_numbers_and_the_gap(capsys):
    expect(100, 103, within=0.05, unit="MB", label="states")
    out = capsys.readouterr().out
    assert out == "states: predicted 100 MB, measured 103 MB, gap +3 %\n"


def test_expect_holds_at_the_edge_and_fails_beyond():
    expect(100, 105, within=0.05)
    expect(100, 95, within=0.05)
    expect(-100, -105, within=0.05)
    for measured in (105.01, 94.99, -100):
        with pytest.raises(AssertionError, match="at most 5 % is allowed"):
            expect(100, measured, within=0.05)


def test_expect_is_exact_by_default():
    expect(2**60, 2**60)
    with pytest.raises(AssertionError):
        expect(2**60, 2**60 + 1)


def test_a_wrong_guess_of_the_learner_never_raises(capsys):
    expect(Prediction("k", 100, 50, "MB"), 100, within=0.01)
    assert "your prediction was 50 MB, gap +100 %" in capsys.readouterr().out


def test_a_right_guess_of_the_learner_does_not_save_the_course():
    with pytest.raises(AssertionError, match="k: measured 50"):
        expect(Prediction("k", 100, 50), 50, within=0.01)


def test_zero():
    expect(0, 0)
    with pytest.raises(AssertionError, match=r"gap of \+inf %"):
        expect(0, 1, within=0.5)
    expect(1, 0, within=1)


def test_a_measurement_that_is_no_finite_number_fails_with_a_sentence():
    for measured in (math.nan, math.inf, "3", None, True):
        with pytest.raises(AssertionError, match=f"measured must be a finite .* got {measured!r}"):
            expect(3, measured, within=100)


def test_a_prediction_that_is_no_finite_number_is_an_error():
    for predicted in (math.nan, math.inf, "3", None, True):
        with pytest.raises(ValueError, match=f"course must be .* got {predicted!r}"):
            expect(predicted, 3)


def test_a_bad_tolerance_is_an_error():
    for within in (-0.1, math.nan, "5 %"):
        with pytest.raises(ValueError, match=f"within must be .* got {within!r}"):
            expect(3, 3, within=within)


def test_a_tensor_can_be_measured():
    expect(4, torch.tensor(4.0))
    with pytest.raises(AssertionError):
        expect(4, torch.tensor(5.0))
