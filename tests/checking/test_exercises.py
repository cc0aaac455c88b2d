import pytest

from course_lib.checking import Exercise
from course_lib.checking.exercises import chapter_module, chapters, find


def _pass(answer):
    pass


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"id": "1"}, "id"),
        ({"id": "1.0"}, "id"),
        ({"id": "one.1"}, "id"),
        ({"kind": "guess"}, "kind"),
        ({"hints": ()}, "hints"),
        ({"hints": "one text"}, "hints"),
    ],
)
def test_a_malformed_exercise_is_refused(changed, named):
    good = {"id": "1.1", "title": "T", "kind": "debug", "check": _pass, "hints": ("a hint",)}
    assert Exercise(**good).id == "1.1"
    with pytest.raises(ValueError, match=named):
        Exercise(**good | changed)


def test_an_exercise_is_found_by_its_id(chapter):
    assert find("90.2").title == "Count steps"
    assert 90 in chapters()


@pytest.mark.parametrize("unknown", ["90.3", "90", "90.11", "ninety", "", 90.1, None])
def test_an_unknown_id_gets_one_sentence_with_a_remedy(chapter, unknown):
    with pytest.raises(ValueError, match="there is no exercise") as caught:
        find(unknown)
    assert "did you mean" in str(caught.value) or "write chapter.number" in str(caught.value)


def test_the_nearest_id_is_named(chapter):
    with pytest.raises(ValueError, match=r"did you mean '90\.[12]'"):
        find("90.11")


def test_only_the_needed_chapter_is_imported(chapter_folder):
    (chapter_folder / "ch91.py").write_text("raise RuntimeError('imported for nothing')")
    assert find("90.1").id == "90.1"


def test_an_import_error_inside_a_chapter_is_not_hidden(chapter_folder):
    (chapter_folder / "ch92.py").write_text("import a_module_that_is_not_there")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        chapter_module(92)


def test_a_chapter_without_exercises_is_named():
    with pytest.raises(ValueError, match="chapter 77 has no exercises"):
        chapter_module(77)


def test_every_exercise_of_the_course_belongs_to_its_chapter():
    for chapter in chapters():
        ids = [exercise.id for exercise in chapter_module(chapter).EXERCISES]
        assert ids == [f"{chapter}.{number}" for number in range(1, len(ids) + 1)]
