"""The build joins headings, checks and exercises, and refuses each of them without the others."""

import pytest

from course_lib.building import build
from course_lib.problem import Problem
from tests.building.test_build import CHAPTER, CHECKS

FIRST = 'check("1.1", answer)'
SECOND = 'check("1.2", steps)'


def build_with(root, chapter, checks):
    for path, text in (
        ("course_lib/chapters/ch01_steps/01_steps.py", chapter),
        ("course_lib/chapters/ch01_steps/exercises.py", checks),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    build(root)


_CUT = CHAPTER.rindex("# %% [markdown] tags")
FIRST_CELLS, SECOND_CELLS = CHAPTER[:_CUT], CHAPTER[_CUT:]
FIRST_CHECKS = CHECKS[: CHECKS.index('@exercise("1.2"')]
UNDER_ONE = SECOND_CELLS.replace("### 1.2 Implement", "Implement").replace(SECOND, FIRST)
TWO_SOLUTIONS = FIRST_CELLS.replace(FIRST, "") + UNDER_ONE
# What is wrong: (chapter, checks, what the sentence must name).
FAULTS = {
    "no check function": (CHAPTER, FIRST_CHECKS, ["steps.py:39", "1.2", "exercises.py"]),
    "no checks at all": (CHAPTER, "", ["steps.py:23", "1.1", "exercises.py"]),
    "no cells": (FIRST_CELLS, CHECKS, ["exercises.py", "1.2", "ch01_steps"]),
    "no check": (CHAPTER.replace(FIRST, "pass"), CHECKS, ["steps.py:23", "1.1", 'check("1.1"']),
    "no last check": (CHAPTER.replace(SECOND, "pass"), CHECKS, ["steps.py:39", "1.2"]),
    "commented out": (CHAPTER.replace(FIRST, f"# {FIRST}"), CHECKS, ["steps.py:23", "1.1"]),
    "another's check": (CHAPTER.replace(FIRST, SECOND), CHECKS, ["steps.py:23", "1.1", "1.2"]),
    "another chapter's check": (
        CHAPTER.replace(SECOND, 'check("2.2", steps)'),
        CHECKS,
        ["steps.py:39", "1.2", "2.2"],
    ),
    "two solutions, one check": (TWO_SOLUTIONS, FIRST_CHECKS, ["steps.py:23", "1.1"]),
    "a heading twice": (CHAPTER + SECOND_CELLS, CHECKS, ["ch01_steps", "1.2", "2 times"]),
    "an id twice": (CHAPTER, CHECKS.replace('"1.2"', '"1.1"'), ["exercises.py", "1.1", "2 times"]),
    "a title that ends like a sentence": (
        CHAPTER.replace("Calculate: count", "Calculate: count."),
        CHECKS,
        ["exercises.py", "1.1", "full stop"],
    ),
    "no hint": (CHAPTER.replace("# Round up.\n", ""), CHECKS, ["exercises.py", "1.2", "one hint"]),
    "no heading": (CHAPTER.replace("### 1.1 ", ""), CHECKS, ["exercises.py", "### 1.1 "]),
    "a solution outside": (
        CHAPTER.replace(' tags=["exercise", "kept-tag"]\nanswer', "\nanswer"),
        CHECKS,
        ["steps.py:32", 'tags=["exercise"]'],
    ),
    "an unknown kind": (CHAPTER.replace("Implement", "Guess"), CHECKS, ["exercises.py", "guess"]),
    "an id of no form": (CHAPTER, CHECKS.replace('"1.2"', '"1.x"'), ["exercises.py", "1.x"]),
}


def test_each_fault_gets_a_sentence_that_names_exercise_and_file(tmp_path):
    for number, (fault, (chapter, checks, named)) in enumerate(FAULTS.items()):
        root = tmp_path / str(number)
        try:
            build_with(root, chapter, checks)
        except Problem as problem:
            sentence = str(problem)
        else:
            pytest.fail(f"{fault}: it was built")
        missing = [word for word in named if word not in sentence]
        assert not missing and "\n" not in sentence, f"{fault}: {missing} not in {sentence!r}"
        assert not (root / "exercises").exists(), f"{fault}: nothing is written"
