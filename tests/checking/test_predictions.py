import math
from dataclasses import FrozenInstanceError

import pytest

from course_lib.checking import Prediction, expect, predict, progress


@pytest.mark.parametrize("yours", [None, ...])
def test_without_an_answer_the_courses_prediction_is_taken_and_said(yours, capsys):
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


@pytest.mark.parametrize("yours", ["12 GB", True, [12], math.nan, math.inf])
def test_a_prediction_that_is_no_number_gets_a_sentence(yours):
    with pytest.raises(ValueError, match="yours must be"):
        predict("k", "?", course=16, yours=yours)
    with pytest.raises(ValueError, match="course must be"):
        predict("k", "?", course=yours)


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


@pytest.mark.parametrize("measured", [math.nan, math.inf, "3", None, True])
def test_a_measurement_that_is_no_finite_number_fails_with_a_sentence(measured):
    with pytest.raises(AssertionError, match="measured must be a finite number"):
        expect(3, measured, within=100)


@pytest.mark.parametrize("predicted", [math.nan, math.inf, "3", None, True])
def test_a_prediction_that_is_no_finite_number_is_an_error(predicted):
    with pytest.raises(ValueError, match="course must be"):
        expect(predicted, 3)


@pytest.mark.parametrize("within", [-0.1, math.nan, "5 %"])
def test_a_bad_tolerance_is_an_error(within):
    with pytest.raises(ValueError, match="within must be"):
        expect(3, 3, within=within)


def test_a_tensor_can_be_measured():
    import torch

    expect(4, torch.tensor(4.0))
    with pytest.raises(AssertionError):
        expect(4, torch.tensor(5.0))
