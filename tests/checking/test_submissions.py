"""Made submissions, good, bad and hostile, each graded as it should be, and nothing left of it."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest

from course_lib.checking import Wrong
from course_lib.checking.submissions.answers import packed, unpacked
from course_lib.checking.submissions.grade import grade_notebook
from course_lib.checking.submissions.notebook import read
from course_lib.checking.submissions.sandbox import CELL_LIMIT_S, Limits, sandbox_version
from course_lib.problem import Problem
from course_lib.theory.inputs import Layout
from tests.checking.submissions_made import IDS, MADE, REFUSED, ROOT, notebook, write_all

GRADED_TOGETHER = 4
Part = namedtuple("Part", "x y")


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """{name: (what came of it, its limits)} of all of them, and where they worked."""
    folder, home = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("home")
    work = tmp_path_factory.mktemp("work")
    write_all(folder)

    def one(name, seconds=300.0):
        limits = Limits(**{"seconds": seconds, **MADE[name].limits})
        return grade_notebook(folder / f"{name}.ipynb", limits), limits

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(GRADED_TOGETHER) as pool:
        patch.setenv("COURSE_HOME", str(home))
        patch.setattr(tempfile, "tempdir", str(work))
        began_s = time.monotonic()
        assert one("right")[0].passed == len(IDS)
        # What never ends gets a few times what this machine needs now, four at once.
        short_s = max(10.0, 8 * (time.monotonic() - began_s))
        seconds = [300.0 if made.ends else short_s for made in MADE.values()]
        found = dict(zip(MADE, pool.map(one, MADE, seconds), strict=True))
    assert list(home.iterdir()) == [], "grading touched the grader's own progress"
    return found, work


@pytest.mark.parametrize("name", MADE)
def test_each_gets_its_verdicts(name, graded):
    made, (found, limits) = MADE[name], graded[0][name]
    if made.fenced and not sandbox_version():
        pytest.skip("this system has no Landlock")
    assert found.problem == ""
    wanted = dict.fromkeys(IDS, made.others) | made.rows
    assert [row.id for row in found.rows] == IDS
    for row in found.rows:
        status, reason = wanted[row.id]
        reason = reason.format(seconds=limits.seconds, cell_s=limits.cell_s)
        assert status in (row.status, "any") and reason in row.reason, row.line


@pytest.mark.parametrize(("write", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_notebook_of_the_course_is_a_sentence(write, words, tmp_path):
    write(tmp_path / "x.ipynb")
    with pytest.raises(Problem, match=re.escape(words)):
        read(tmp_path / "x.ipynb")


def test_a_problem_of_the_supervisor_comes_through(tmp_path):
    found = grade_notebook(tmp_path / "absent.ipynb")
    assert "does not exist" in found.problem and found.rows == ()


def test_nothing_is_left(graded):
    work, left = graded[1], []
    assert list(work.iterdir()) == []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"COURSE_GRADING={work}".encode() in environment.read_bytes():
                left.append(environment.parent.name)
        except OSError:
            pass  # it has just ended
    assert left == []
    assert not list(ROOT.rglob("made_by_a_submission"))


RIGHT_RING = """
from course_lib import check
from course_lib.scratch.collectives import ring_all_gather, ring_reduce_scatter as right

def ring_reduce_scatter(whole, peers):
    return right(whole, peers)

check("6.11", [ring_reduce_scatter, ring_all_gather])
"""


def test_a_build_is_judged_on_ranks_of_its_own(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    hangs = RIGHT_RING.replace(
        "return right", "peers.receive(whole, peers.rank + 1)\n    return right"
    )
    for source, status, words in (
        (RIGHT_RING, "pass", ""),
        (hangs, "fail", "nothing moves any more"),
    ):
        notebook([source], {})(tmp_path / "x.ipynb")
        row = grade_notebook(tmp_path / "x.ipynb").rows[-2]
        assert (row.id, row.status) == ("6.11", status) and words in row.reason, row.line
    assert not list(work.glob("course_*"))


# --- its parts --------------------------------------------------------------------------------


def test_a_notebook_is_for_all_chapters_that_it_checks_or_was_built_from(tmp_path):
    def chapters(name, *sources, built_from=None):
        metadata = {"course": {"chapter": built_from}} if built_from else {}
        notebook(list(sources), metadata)(tmp_path / name)
        return {each.id.partition(".")[0] for each in read(tmp_path / name).exercises}

    assert chapters("x.ipynb", "check('5.1', 1)") == {"5"}
    assert chapters("x.ipynb", "check('5.1', 1)", "check('6.1', 1)") == {"5", "6"}
    assert chapters("x.ipynb", "check('5.1', 1)", built_from="06_collectives") == {"5", "6"}
    assert chapters("07_ddp.ipynb", "# check('5.1', 1)") == {"7"}
    assert chapters("07_ddp.ipynb", "check('5.1', 1)", "check('99.1', 1)") == {"5"}


@pytest.mark.parametrize(
    "answer",
    [3, 1e300, True, None, ..., "a", b"a", [1, (2, {"a": 3})], {1}, Fraction(1, 3), Layout(dp=2)],
)
def test_data_are_rebuilt_without_running_code(answer):
    assert unpacked(packed(answer), code_is_welcome=False) == answer


def test_arrays_travel_as_lists_and_subclasses_as_their_bases():
    import numpy

    answer = OrderedDict(a=[numpy.arange(2)], b=Part(1, 2), c=numpy.float64(0.5))
    rebuilt = unpacked(packed(answer), code_is_welcome=False)
    assert rebuilt == {"a": [[0, 1]], "b": (1, 2), "c": 0.5}
    assert [type(each) for each in (rebuilt, *rebuilt.values())] == [dict, list, tuple, float]


@pytest.mark.parametrize("answer", [len, lambda: 1, Part, object(), Path("x"), os.system])
def test_all_else_is_refused_where_data_are_wanted(answer):
    with pytest.raises(Wrong, match="wants numbers or texts"):
        unpacked(packed(answer), code_is_welcome=False)


def test_a_pickle_that_changes_a_class_is_not_data():
    # The class Fraction, built with a state: a pickle may set attributes of whatever it finds.
    raw = b"\x80\x04cfractions\nFraction\n(N}\x8c\x07forgeryK\x01stb."
    try:
        with pytest.raises(Wrong, match="wants numbers or texts"):
            unpacked(raw, code_is_welcome=False)
        assert Fraction.forgery == 1, "the pickle does what it is meant to do"
    finally:
        del Fraction.forgery


@pytest.mark.skipif(not sandbox_version(), reason="this system has no Landlock")
def test_the_sandbox_keeps_writing_in_and_is_inherited(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.write_text("old")
    program = f"""
import os, pathlib, subprocess
from course_lib.checking.submissions.sandbox import enter_sandbox
assert enter_sandbox(pathlib.Path({str(inside)!r}))
pathlib.Path({str(inside / "new")!r}).write_text("new")
os.remove({str(inside / "new")!r})
open("/dev/null", "w").write("x")
assert pathlib.Path({str(outside)!r}).read_text() == "old"
for refused in (
    lambda: pathlib.Path({str(outside)!r}).write_text("new"),
    lambda: os.truncate({str(outside)!r}, 0),
    lambda: os.remove({str(outside)!r}),
    lambda: os.rename({str(outside)!r}, {str(inside / "moved")!r}),
    lambda: os.mkdir({str(tmp_path / "folder")!r}),
    lambda: subprocess.run(["rm", {str(outside)!r}], check=True, stderr=subprocess.DEVNULL),
    lambda: os.kill(os.getppid(), 0) if {sandbox_version() >= 6} else os.remove("/"),
):
    try:
        refused()
    except (OSError, subprocess.CalledProcessError):
        continue
    raise SystemExit("the sandbox has a hole")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert outside.read_text() == "old"


def test_a_cell_has_as_long_as_when_notebooks_are_tested():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"--nbval-cell-timeout={CELL_LIMIT_S}"' in settings
    assert Limits().cell_s == CELL_LIMIT_S and Limits(seconds=10).cell_s == 4


@pytest.mark.slow
def test_all_solutions_pass():
    for path in sorted((ROOT / "solutions").glob("*.ipynb")):
        graded = grade_notebook(path)
        assert graded.total and graded.passed == graded.total, graded
