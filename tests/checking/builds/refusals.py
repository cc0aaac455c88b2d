"""The wrong versions of all builds. Their tests are several files, which several workers take."""

import re

import pytest
from all_rooms import beside

from course_lib.checking import Wrong
from course_lib.checking.exercises import find
from course_lib.mine import PARTS
from tests.checking.builds.patches import Later


def wrong_of(file):
    """(what was thought, answer, words of the refusal) of one build."""
    return beside(f"wrong_{file}").WRONG


EARLY, LATE = range(2, 10), range(10, 18)  # the chapters of the two files of tests


def of_chapters(chapters):
    """Parameters of a test: every wrong version of the builds of these chapters."""
    return pytest.mark.parametrize(
        ("build", "answer", "words"),
        [
            pytest.param(part.build, answer, words, id=f"{part.file}: {thought}")
            for part in PARTS
            if int(part.build.partition(".")[0]) in chapters
            for thought, answer, words in wrong_of(part.file)
        ],
    )


def made(answer):
    """The answer, which a wrong version of `patches` makes only now."""
    return answer.make() if isinstance(answer, Later) else answer


def expect_refusal(build, answer, words):
    """The check refuses the answer, and its sentence has these words."""
    answer = made(answer)
    with pytest.raises(Wrong) as refused:
        find(build).check(answer)
    assert re.search(words, str(refused.value)), refused.value
