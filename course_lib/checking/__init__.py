"""Grades exercises, gives hints, keeps progress: immediate, offline, one stable line per check."""

from course_lib.checking.exercise import CheckFailed, Exercise, Unanswered, Wrong
from course_lib.checking.grading import Verdict, check, grade, hint
from course_lib.checking.helpers import (
    call,
    expect_callable,
    expect_calls,
    expect_choice,
    expect_equal,
    expect_number,
    expect_parts,
    expect_raises,
    expect_type,
)
from course_lib.checking.predictions import Prediction, expect, predict
from course_lib.checking.quizzes import Question, quiz

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
    "expect",
    "expect_callable",
    "expect_calls",
    "expect_choice",
    "expect_equal",
    "expect_number",
    "expect_parts",
    "expect_raises",
    "expect_type",
    "grade",
    "hint",
    "predict",
    "quiz",
]
