"""Each exercise: the solution passes, the empty exercise does not, typical mistakes do not."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from course_lib.checking import grade
from course_lib.checking.exercise import chapters, exercises_of
from tests.checking.typical_mistakes import ALL

ROOT = Path(__file__).parents[2]
CHAPTERS = chapters()
EXERCISES = [exercise for number in CHAPTERS for exercise in exercises_of(number)]


def verdicts(folder, number):
    """Runs a notebook's code cells in order; returns {exercise id: status}."""
    (path,) = (ROOT / folder).glob(f"{number:02}_*[a-z].ipynb")
    space, out = {}, io.StringIO()
    with contextlib.redirect_stdout(out):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), space)
    return {key: status for status, key in re.findall(r"\[(\w+)\] (\d+\.\d+) ", out.getvalue())}


@pytest.fixture(autouse=True)
def not_strict(monkeypatch):
    monkeypatch.delenv("COURSE_STRICT", raising=False)


@pytest.mark.parametrize("number", CHAPTERS)
def test_every_solution_passes(number):
    ids = {exercise.id for exercise in exercises_of(number)}
    assert verdicts("solutions", number) == dict.fromkeys(ids, "pass")


@pytest.mark.parametrize("number", CHAPTERS)
def test_no_unsolved_exercise_passes(number):
    found = verdicts("exercises", number)
    assert set(found) == {exercise.id for exercise in exercises_of(number)}
    assert set(found.values()) <= {"todo", "fail"}


@pytest.mark.parametrize(("key", "thought", "answer"), ALL, ids=[f"{m[0]}: {m[1]}" for m in ALL])
def test_typical_mistakes_are_refused(key, thought, answer):
    verdict = grade(key, answer)
    assert verdict.status == "fail", thought
    assert "expected" in verdict.line or "wants" in verdict.line


@pytest.mark.parametrize("exercise", EXERCISES, ids=[e.id for e in EXERCISES])
def test_each_exercise_has_mistakes_and_hints(exercise):
    assert sum(mistake[0] == exercise.id for mistake in ALL) >= 2
    assert exercise.hints


@pytest.mark.parametrize("number", CHAPTERS)
def test_a_chapter_has_all_kinds_of_exercise(number):
    kinds = {exercise.kind for exercise in exercises_of(number)}
    assert kinds == {"calculate", "implement", "debug", "predict"}


@pytest.mark.parametrize("exercise", EXERCISES, ids=[e.id for e in EXERCISES])
@pytest.mark.parametrize("nonsense", ["text", object(), [], {}, True, float("nan")])
def test_nonsense_gets_a_sentence(exercise, nonsense):
    line = grade(exercise.id, nonsense).line
    assert line.startswith("[fail]")
    assert "Traceback" not in line
