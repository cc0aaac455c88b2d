"""Grades exercises, gives hints, saves progress: immediate, offline, one stable line per check."""

from course_lib.checking.exercises import CheckFailed, Exercise, Unanswered, Wrong, exercise
from course_lib.checking.grading import Verdict, check, grade, hint, quiz, solution
from course_lib.checking.helpers import (
    call,
    expect_callable,
    expect_calls,
    expect_choice,
    expect_entries,
    expect_equal,
    expect_number,
    expect_numbers,
    expect_parts,
    expect_raises,
    expect_type,
    expect_whole_numbers,
    run,
)
from course_lib.checking.predictions import Prediction, expect, predict
from course_lib.checking.questions import Question
from course_lib.checking.races import race

__all__ = [
    "CheckFailed",
    "Exercise",
    "Prediction",
    "Question",
    "Unanswered",
    "Verdict",
    "Wrong",
    "call",
    "check",
    "exercise",
    "expect",
    "expect_callable",
    "expect_calls",
    "expect_choice",
    "expect_entries",
    "expect_equal",
    "expect_number",
    "expect_numbers",
    "expect_parts",
    "expect_raises",
    "expect_type",
    "expect_whole_numbers",
    "grade",
    "hint",
    "predict",
    "quiz",
    "race",
    "run",
    "solution",
]
