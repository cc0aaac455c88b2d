"""After submissions that fail and that hang, no process and no folder is left."""

import re
import tempfile

import psutil
import pytest

from course_lib import launch, mine
from course_lib.checking import grade
from tests.checking.builds.refusals import made, wrong_of

HANGS = re.compile(r"nothing moves")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A temporary folder of this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def below_this():
    """The processes that this one has started, and they."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def failing_and_hanging(failing, hanging):
    """(build, answer) of so many wrong versions that fail, and that hang."""
    cases = [(part.build, *wrong) for part in mine.PARTS for wrong in wrong_of(part.file)]
    hang = [case for case in cases if HANGS.search(case[3])]
    fail = [case for case in cases if not HANGS.search(case[3])]
    step = max(1, len(fail) // failing)
    several = (hang * hanging)[:hanging]
    return [(build, answer) for build, _, answer, _ in [*fail[::step][:failing], *several]]


def _nothing_is_left_after(cases, folder):
    launch.run(int, ranks=1, stream=False)  # the server stays: it is there before
    before = below_this()
    for build, answer in cases:
        assert grade(build, made(answer)).status == "fail"
    assert below_this() <= before
    assert list(folder.glob("course_*")) == []


def test_nothing_is_left_of_a_few(folder):
    _nothing_is_left_after(failing_and_hanging(6, 1), folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_left_of_fifty_failing_and_ten_hanging_ones(folder):
    cases = failing_and_hanging(50, 10)
    assert len(cases) == 60
    _nothing_is_left_after(cases, folder)
