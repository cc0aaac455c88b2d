"""Exercises: how they are declared and found, what their texts name, and their solutions."""

import inspect
import json
import re
from pathlib import Path

import pytest

from course_lib.checking import Exercise, progress, solution
from course_lib.checking.exercises import chapter_module, chapters, exercises_of, find
from course_lib.checking.report import as_text, summary
from notebooks import ROOT

ROOMS = Path(__file__).parents[2] / "course_lib" / "chapters"


def _pass(answer):
    pass


def test_a_malformed_exercise_is_refused():
    good = {"id": "1.1", "kind": "debug", "title": "t", "hints": ("a hint",), "check": _pass}
    assert Exercise(**good).id == "1.1"
    for name, *values in (
        ("id", "1", "1.0", "one.1"),
        ("kind", "guess"),
        ("title", "", " ", "Ends like a sentence."),
        ("hints", (), "one text", ("",), (" ", "a hint"), ("twice", "twice")),
    ):
        for value in values:
            try:
                Exercise(**good | {name: value})
            except ValueError as error:
                assert name in str(error) and ": " in str(error), f"{name} {value!r}: {error}"
            else:
                pytest.fail(f"{name} {value!r} was taken")


def test_a_heading_says_number_kind_and_title():
    headings = [
        Exercise("1.2", "debug", title, ("a hint",), _pass).heading
        for title in ("two counts", "does it fit?", '"deprecated"')
    ]
    assert headings == [
        "1.2 Debug: two counts",
        "1.2 Debug: does it fit?",
        '1.2 Debug: "deprecated"',
    ]


def test_an_exercise_is_found_by_its_id_and_else_the_nearest_is_named(chapter):
    assert find("90.2").title == "count steps"
    assert 90 in chapters()
    for unknown in ("90.3", "90", "90.11", "ninety", "", 90.1, None):
        with pytest.raises(ValueError, match=f"there is no exercise {unknown!r}") as caught:
            find(unknown)
        assert "did you mean" in str(caught.value) or "write chapter.number" in str(caught.value)
    with pytest.raises(ValueError, match=r"did you mean '90\.[12]'"):
        find("90.11")


def _room(folder, name, text):
    (folder / name).mkdir()
    (folder / name / "exercises.py").write_text(text)


def test_only_the_needed_chapter_is_imported(chapter_folder):
    _room(chapter_folder, "ch91_made", "raise RuntimeError('imported for nothing')")
    assert find("90.1").id == "90.1"


def test_an_import_error_inside_a_chapter_is_not_hidden(chapter_folder):
    _room(chapter_folder, "ch92_made", "import a_module_that_is_not_there")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        chapter_module(92)


def test_a_chapter_without_exercises_is_named():
    with pytest.raises(ValueError, match="chapter 77 has no exercises"):
        chapter_module(77)


def test_every_exercise_of_the_course_belongs_to_its_chapter_and_has_two_hints():
    for chapter in chapters():
        exercises = exercises_of(chapter)
        ids = [exercise.id for exercise in exercises]
        assert all(re.fullmatch(rf"{chapter}\.\d+", each) for each in ids)
        few = [exercise.id for exercise in exercises if len(exercise.hints) < 2]
        assert not few, f"give a second hint to {few}"


def test_published_mistakes_name_their_source():
    """By its number: "note 004" is one of the notes that chapter 0 introduces."""
    introduced = (ROOMS / "ch00_start_here" / "00_start_here.py").read_text(encoding="utf-8")
    said = re.compile(r"^# ### \d+\.\d+ .*\n#\n# \([^)]*?published mistakes?(.*?)\)", re.M)
    sources = []
    for path in ROOMS.glob("*/[0-9]*.py"):
        for after in said.findall(path.read_text(encoding="utf-8")):
            notes = re.findall(r"00\d", after)
            sources += notes
            assert notes or "arXiv" in after, (
                f"{path.name}: (published mistake{after}) has no source"
            )
    assert len(sources) >= 30
    assert all(f"| {note} |" in introduced for note in sources)


def test_the_sections_that_checks_and_hints_name_exist():
    named = re.compile(r"\b[Ss]ections? (\d+\.\d+)(?: and (\d+\.\d+))?")
    headings = re.compile(r"^# ## (\d+\.\d+) ", re.M)
    sources = [path.read_text(encoding="utf-8") for path in ROOMS.glob("*/[0-9]*.py")]
    sections = {section for source in sources for section in headings.findall(source)}
    found = 0
    for number in chapters():
        hints = [hint for exercise in exercises_of(number) for hint in exercise.hints]
        because = inspect.getsource(chapter_module(number))
        for match in named.finditer("\n".join([because, *hints])):
            found += 1
            missing = set(filter(None, match.groups())) - sections
            assert not missing, f"chapter {number} names section {missing}, which no chapter has"
    assert found > 20


@pytest.mark.parametrize("number", chapters())
def test_each_exercise_has_a_solution_which_a_learner_can_call_beside_it(number):
    for each in exercises_of(number):
        assert f'check("{each.id}"' in solution(each.id).text, each.id
    (path,) = (ROOT / "exercises").glob(f"{number:02}_*[a-z].ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first, space = next(cell for cell in cells if cell["cell_type"] == "code"), {}
    exec("".join(first["source"]), space)
    assert space["solution"] is solution and {"check", "hint"} <= set(space)


def test_it_counts_as_seen_unless_it_was_passed_before():
    solution("7.2")
    assert progress.read()["exercises"]["7.2"] == {"seen": True}
    assert "solution seen" in as_text(summary())
    progress.update("exercises", "7.3", lambda record: record.update(status="pass"))
    solution("7.3")
    assert "seen" not in progress.read()["exercises"]["7.3"]
