"""Every build takes the course's own version and other right ones; wrong ones are beside this."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from all_rooms import beside

from course_lib import mine
from course_lib.checking import Unanswered, Wrong, check, grade
from course_lib.checking.exercises import find
from course_lib.mine import PARTS
from course_lib.mine.cells import taken_from_the_course
from tests.checking.builds.refusals import EARLY, LATE, wrong_of

ROOT = Path(__file__).parents[3]
FILES = [part.file for part in PARTS]


def right_of(file):
    """Right versions in another form: (what form, answer)."""
    return getattr(beside(f"wrong_{file}"), "RIGHT", [])


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


def _in_a_cell(text, names):
    """What a learner's cell defines under these names."""
    space = {"__name__": "__main__"}
    exec(compile(text, "<a cell>", "exec"), space)
    return [space[name] for name in names]


_AUDIT = "course_lib.chapters.ch17_capstone.claimed"
_TREE = "course_lib.scratch.collectives"
_KEPT = "course_lib.scratch.checkpointing"
BORROWED = [
    ("17.12", f"from {_AUDIT} import audit_run"),
    ("17.12", f"from {_AUDIT} import audit_run as a\ndef audit_run(*x, **y): return a(*x, **y)"),
    (
        "17.12",
        f"def audit_run(*x, **y):\n    import {_AUDIT} as a\n    return a.audit_run(*x, **y)",
    ),
    (
        "17.12",
        "from importlib import import_module\ndef audit_run(*x, **y):\n"
        f"    return getattr(import_module('{_AUDIT}'), 'audit' + str('_run'))(*x, **y)",
    ),
    (
        "17.12",
        "from course_lib import mine\n"
        "def audit_run(*x, **y): return mine.get('audit_run', 'course')(*x, **y)",
    ),
    ("6.12", f"from {_TREE} import tree_all_reduce as t\ndef tree_all_reduce(*x): return t(*x)"),
    (
        "6.12",
        f"import types, {_TREE} as t\nc = t.tree_all_reduce\n"
        "tree_all_reduce = types.FunctionType(c.__code__, c.__globals__, 'tree_all_reduce')",
    ),
    ("4.6", f"from {_KEPT} import Checkpoint as C\nclass Checkpoint(C): pass"),
    (
        "4.6",
        f"from {_KEPT} import Checkpoint as C\n"
        "Checkpoint = type('Checkpoint', C.__bases__, dict(vars(C)))",
    ),
]


@pytest.mark.parametrize(("build", "text"), BORROWED)
def test_what_runs_the_courses_own_is_said_so_and_not_kept(build, text, home, capsys):
    (part,) = (part for part in PARTS if part.build == build)
    answers = _in_a_cell(text, part.names)
    verdict = grade(build, answers)
    assert verdict.status == "pass"
    assert f"the course's own {part.names[-1]}: nothing is kept" in verdict.line
    check(build, answers)
    assert "nothing is kept" in capsys.readouterr().out
    assert not (home / "mine").exists()


@pytest.mark.parametrize("file", ["claims", "tree", "checkpointing", "reshard"])
def test_what_is_the_learners_is_not_called_the_courses(file):
    """Reshard uses what its exercise gives of the course's own module."""
    part = mine.BY_FILE[file]
    verdict = grade(part.build, right_of(file)[0][1])
    assert (verdict.status, verdict.reason) == ("pass", "")


@pytest.mark.parametrize("part", PARTS, ids=FILES)
def test_what_an_exercise_imports_is_given(part):
    own = {name for names in mine.own_names(part).values() for name in names}
    assert taken_from_the_course(exercise_cell(part), own) <= {*part.names}


def test_each_build_has_four_wrong_versions():
    few = [file for file in FILES if len(wrong_of(file)) < 4]
    assert not few


def test_the_files_of_wrong_versions_are_those_of_the_builds():
    found = {path.stem for path in ROOT.glob("tests/chapters/*/wrong_*.py")}
    assert found == {f"wrong_{file}" for file in FILES}


def test_what_two_names_of_a_part_share_is_counted_once_among_the_courses_lines():
    whole = mine.BY_FILE["ddp"]
    bucket, ddp = (mine.lines(replace(whole, names=(name,)), "course") for name in whole.names)
    assert mine.lines(whole, "course") == ddp  # DDP uses Bucket, which is in its module
    assert ddp > bucket > 10


def test_wrong_versions_of_every_chapter_have_a_test():
    assert {int(part.build.partition(".")[0]) for part in PARTS} <= {*EARLY, *LATE}
