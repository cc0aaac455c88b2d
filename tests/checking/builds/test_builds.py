"""Every build takes the course's own version and other right ones; wrong ones are beside this."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from course_lib import mine
from course_lib.checking import Unanswered, Wrong
from course_lib.checking.exercises import find
from course_lib.mine import PARTS
from tests.checking.builds.refusals import asked, wrong_of

ROOT = Path(__file__).parents[3]
FILES = [part.file for part in PARTS]


def right_of(file):
    """Right versions in another form: (what form, answer)."""
    return getattr(import_module(f"tests.checking.builds.wrong_{file}"), "RIGHT", [])


def right(part):
    return [mine.get(name, "course") for name in part.names]


@pytest.mark.parametrize("part", PARTS, ids=FILES)
def test_the_courses_own_version_is_right(part):
    find(part.build).check(right(part))


@pytest.mark.parametrize(
    ("part", "answer"),
    [
        pytest.param(part, answer, id=f"{part.file}: {form}")
        for part in PARTS
        for form, answer in right_of(part.file)
    ],
)
def test_a_right_version_of_another_form_is_right(part, answer):
    find(part.build).check(answer)


@pytest.mark.parametrize("part", PARTS, ids=FILES)
def test_nonsense_is_refused_by_a_sentence(part):
    good = right(part)
    for nonsense in (3, "ring", {}, good[:-1], [*good[:-1], 3], [*good[:-1], len], [good]):
        with pytest.raises((Wrong, Unanswered)) as refused:
            find(part.build).check(nonsense)
        assert "wants" in str(refused.value) or not good[:-1], nonsense


def _unwritten(name):
    def skeleton(*_, **__):
        """Only its name and this text."""
        ...

    skeleton.__name__ = name
    return skeleton


@pytest.mark.parametrize("part", PARTS, ids=FILES)
def test_the_skeleton_is_still_to_be_written(part):
    good = right(part)
    empty = [one if isinstance(one, type) else _unwritten(one.__name__) for one in good]
    if empty != good:
        with pytest.raises(Unanswered, match=r"step \d of .*: write "):
            find(part.build).check(empty)


def exercise_cell(part):
    """The code of the learner's cell, as the notebook with the exercises has it."""
    chapter = part.build.partition(".")[0]
    (notebook,) = (ROOT / "exercises").glob(f"{int(chapter):02}_*.ipynb")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    return next(text for text in texts if f'check("{part.build}"' in text)


@pytest.mark.parametrize("part", PARTS, ids=FILES)
def test_the_skeleton_of_the_notebook_runs_and_asks_for_step_1(part):
    answers = []
    exec(exercise_cell(part), {"check": lambda _, answer: answers.append(answer)})
    with pytest.raises(Unanswered, match=r"step 1 of .*: write "):
        find(part.build).check(answers[0])


def test_each_build_has_four_wrong_versions():
    few = [file for file in FILES if len(wrong_of(file)) < 4]
    assert not few


def test_the_files_of_wrong_versions_are_those_of_the_builds():
    found = {path.stem for path in Path(__file__).parent.glob("wrong_*.py")}
    assert found == {f"wrong_{file}" for file in FILES}


def test_the_courses_lines_are_those_of_all_modules_that_define_its_names():
    whole = mine.BY_FILE["ddp"]
    bucket, ddp = (mine.lines(replace(whole, names=(name,)), "course") for name in whole.names)
    assert mine.lines(whole, "course") == bucket + ddp
    assert min(bucket, ddp) > 10


def test_no_two_parts_have_a_name_in_common():
    names = [name for part in PARTS for name in part.names]
    assert len(names) == len(set(names))


def test_wrong_versions_of_every_chapter_have_a_test():
    for path in Path(__file__).parent.glob("test_wrong_*.py"):
        import_module(f"tests.checking.builds.{path.stem}")
    assert {int(part.build.partition(".")[0]) for part in PARTS} <= asked
