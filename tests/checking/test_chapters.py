"""Each exercise: its solution passes; the empty one, typical mistakes and nonsense do not."""

import pytest
from all_rooms import beside

from course_lib.checking import Unanswered, Wrong
from course_lib.checking.exercises import KINDS, chapters, exercises_of, find
from course_lib.checking.submissions.answers import packed, unpacked
from course_lib.checking.submissions.supervisor import DATA_KINDS
from tests.checking.nonsense import NONSENSE, other_forms, spoiled, untouched
from tests.checking.notebooks import checked

CHAPTERS = chapters()
# What a right answer may do without: DeepSpeed computes this number from the others.
STILL_RIGHT = {
    ("8.9", "without 'gradient_accumulation_steps'"),
    ("15.6", "['HEAD']: a text"),  # it may be a machine's name
    ("13.10", "[1]: without 'dp'"),  # ZeRO-1 sends once in an update: hardly any difference
}


def mistakes_of(number):
    """(exercise, what was thought, answer) of a chapter, from its own file beside this one."""
    return _list_of(number, "MISTAKES")


def other_forms_of(number):
    """(exercise, what form, answer): right answers that look different from the solution."""
    return _list_of(number, "OTHER_FORMS")


def _list_of(number, name):
    return getattr(beside(f"mistakes_ch{number:02}"), name, [])


def refusal(exercise, answer):
    """ "" when the check itself refuses the answer by a sentence, else what it did instead."""
    try:
        exercise.check(answer)
    except Wrong as wrong:
        return "" if "expected" in str(wrong) or "wants" in str(wrong) else f"said {wrong}"
    except Unanswered:
        return "took it for unanswered"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return "passed it"


@pytest.mark.parametrize("number", CHAPTERS)
def test_every_solution_passes(number):
    found = {key: status for key, (status, _) in checked("solutions", number).items()}
    assert found == dict.fromkeys((e.id for e in exercises_of(number)), "pass")


@pytest.mark.parametrize("number", CHAPTERS)
def test_answers_to_calculate_and_to_predict_are_data(number):
    """`course check` runs none of a submission's code where these are judged."""
    for key, (_, answer) in checked("solutions", number).items():
        if find(key).kind in DATA_KINDS:
            assert unpacked(packed(answer), code_is_welcome=False) == answer, key


@pytest.mark.parametrize("number", CHAPTERS)
def test_no_unsolved_exercise_passes(number):
    found = {key: status for key, (status, _) in checked("exercises", number).items()}
    assert found.keys() == {exercise.id for exercise in exercises_of(number)}
    assert set(found.values()) <= {"todo", "fail"}, found


@pytest.mark.parametrize("number", CHAPTERS)
def test_typical_mistakes_are_refused_by_a_sentence(number):
    exercises = {exercise.id: exercise for exercise in exercises_of(number)}
    counts = dict.fromkeys(exercises, 0)
    for key, thought, answer in mistakes_of(number):
        counts[key] += 1
        fault = refusal(exercises[key], answer)
        assert not fault, f"{key}, {thought}: the check {fault}"
    few = [key for key, count in counts.items() if count < 2 and exercises[key].kind != "build"]
    assert not few, f"mistakes_ch{number:02}.py needs two typical mistakes for each of {few}"


@pytest.mark.parametrize("number", CHAPTERS)
def test_right_answers_in_another_form_pass(number):
    for key, form, answer in other_forms_of(number):
        fault = refusal(find(key), answer)
        assert fault == "passed it", f"{key}, {form}: the check refused it: {fault}"


@pytest.mark.parametrize("number", CHAPTERS)
def test_nonsense_is_refused_by_a_sentence(number):
    """In each place of the right answer, and of what a right function returns."""
    exercises = {exercise.id: exercise for exercise in exercises_of(number)}
    for key, (_, right) in checked("solutions", number).items():
        if exercises[key].kind == "build":
            continue  # tests/checking/builds
        tried = 0
        for what, answer in spoiled(right):
            fault = refusal(exercises[key], answer)
            if (key, str(what)) in STILL_RIGHT:
                assert fault == "passed it"
            elif not untouched(answer):
                tried += 1
                assert not fault, f"{key}, {what}: the check {fault}"
        assert tried >= len(NONSENSE), f"{key}: nothing was tried"
        for what, answer in other_forms(right):
            fault = refusal(exercises[key], answer)
            assert not fault.startswith("raised"), f"{key}, {what}: the check {fault}"


def test_each_chapter_has_all_kinds_of_exercise():
    for number in CHAPTERS:
        kinds = {exercise.kind for exercise in exercises_of(number)}
        assert kinds | {"build"} == set(KINDS), f"chapter {number}"
