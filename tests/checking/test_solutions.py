"""`solution` shows the code that solves an exercise, and remembers that it did."""

import json

import pytest

from course_lib.checking import progress, solution
from course_lib.checking.exercises import chapters, exercises_of
from course_lib.checking.report import as_text, summary
from notebooks import ROOT


@pytest.mark.parametrize("number", chapters())
def test_each_exercise_has_one(number):
    for exercise in exercises_of(number):
        assert f'check("{exercise.id}"' in solution(exercise.id).text, exercise.id


@pytest.mark.parametrize("number", chapters())
def test_a_learner_can_call_it_beside_the_exercises(number):
    (path,) = (ROOT / "exercises").glob(f"{number:02}_*[a-z].ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first, space = next(cell for cell in cells if cell["cell_type"] == "code"), {}
    exec("".join(first["source"]), space)
    assert space["solution"] is solution and {"check", "hint"} <= set(space)


def test_it_counts_as_seen():
    solution("7.2")
    assert progress.read()["exercises"]["7.2"] == {"seen": True}
    assert "solution seen" in as_text(summary())


def test_what_was_passed_before_was_passed_alone():
    progress.update("exercises", "7.2", lambda record: record.update(status="pass"))
    solution("7.2")
    assert "seen" not in progress.read()["exercises"]["7.2"]


def test_an_unknown_exercise_is_a_sentence():
    with pytest.raises(ValueError, match=r"there is no exercise '7\.99'"):
        solution("7.99")
