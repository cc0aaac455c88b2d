"""Every build takes the course's own version, and refuses wrong ones by a sentence that helps."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from course_lib import mine
from course_lib.checking import Unanswered, Wrong
from course_lib.checking.exercises import find
from course_lib.mine import PARTS

FILES = [part.file for part in PARTS]


def wrong_of(file):
    return import_module(f"tests.checking.builds.wrong_{file}").WRONG


def right(part):
    return [mine.get(name, "course") for name in part.names]


CASES = [
    pytest.param(part, answer, words, id=f"{part.file}: {thought}")
    for part in PARTS
    for thought, answer, words in wrong_of(part.file)
]


@pytest.mark.parametrize("part", PARTS, ids=FILES)
def test_the_courses_own_version_is_right(part):
    find(part.build).check(right(part))


ALSO_RIGHT = [
    pytest.param(part, answer, id=f"{part.file}: {form}")
    for part in PARTS
    for form, answer in getattr(
        import_module(f"tests.checking.builds.wrong_{part.file}"), "RIGHT", []
    )
]


@pytest.mark.parametrize(("part", "answer"), ALSO_RIGHT)
def test_a_right_version_in_another_form_passes(part, answer):
    find(part.build).check(answer)


@pytest.mark.parametrize(("part", "answer", "words"), CASES)
def test_a_wrong_version_is_told_what_is_wrong(part, answer, words):
    with pytest.raises(Wrong) as refused:
        find(part.build).check(answer)
    assert re.search(words, str(refused.value)), refused.value


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
        with pytest.raises(Unanswered, match=r"step 1 of .*: write "):
            find(part.build).check(empty)


def test_each_build_has_four_wrong_versions():
    few = [file for file in FILES if len(wrong_of(file)) < 4]
    assert not few


def test_the_files_of_wrong_versions_are_those_of_the_builds():
    found = {path.stem for path in Path(__file__).parent.glob("wrong_*.py")}
    assert found == {f"wrong_{file}" for file in FILES}
