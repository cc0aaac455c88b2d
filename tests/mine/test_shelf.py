"""What a learner has built is kept, found again, never overwritten, and whose it is is known."""

import linecache

import pytest

from course_lib import launch, mine
from course_lib.problem import Problem
from course_lib.scratch import collectives

NAMES = ("ring_reduce_scatter", "ring_all_gather")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    return tmp_path


def built(body, number=0):
    """The two functions of the ring, as a cell defines them."""
    source = "".join(f"def {name}(*args):\n    return {body!r}\n" for name in NAMES)
    name = f"<a ring of a test {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), space)
    return [space[each] for each in NAMES]


def test_the_courses_own_stands_in_until_it_is_built():
    assert mine.ring_all_gather is collectives.ring_all_gather
    assert not mine.is_mine("ring_all_gather") and mine.get("ring_all_gather").__module__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mine.nothing


def test_what_is_kept_is_found_by_this_process_and_by_ranks(home):
    path = mine.keep("ring", built("mine"))
    assert path == home / "mine" / "ring.py" and mine.is_mine("ring_all_gather")
    assert mine.ring_all_gather() == "mine"
    assert mine.get("ring_all_gather", "course") is collectives.ring_all_gather
    assert launch.run(_asked_on_a_rank, ranks=2, stream=False) == ["mine", "mine"]
    assert launch.run(mine.ring_all_gather, ranks=1, stream=False) == ["mine"]


def _asked_on_a_rank():
    return mine.ring_all_gather()


def test_an_older_version_is_renamed_and_an_equal_one_left(home):
    for number, body in enumerate(("first", "second", "second", "third")):
        mine.keep("ring", built(body, number))
        assert mine.ring_all_gather() == body
    texts = {path.name: path.read_text() for path in (home / "mine").glob("*.py")}
    assert sorted(texts) == ["ring.py", "ring_before_1.py", "ring_before_2.py"]
    assert "first" in texts["ring_before_1.py"] and "second" in texts["ring_before_2.py"]


def test_the_courses_own_is_not_kept(home):
    assert mine.keep("ring", [collectives.ring_reduce_scatter, collectives.ring_all_gather]) is None
    assert not (home / "mine").exists()


def test_a_changed_file_is_loaded_again_and_a_broken_one_is_a_sentence(home):
    path = mine.keep("ring", built("mine"))
    path.write_text(path.read_text().replace("'mine'", "'changed'") + "\n# longer\n")
    assert mine.ring_all_gather() == "changed"
    path.write_text("x = 1\ndef broken(:\n")
    with pytest.raises(Problem, match=r"ring\.py.* cannot be loaded \(SyntaxError.*mend it"):
        mine.get("ring_all_gather")
    with pytest.raises(Problem, match=r"ring\.py, line 2, is no Python .*: mend it"):
        mine.lines(mine.BY_FILE["ring"])
    path.write_text("x = nothing\n")
    with pytest.raises(Problem, match=r"line 1 cannot be loaded .NameError"):
        mine.get("ring_all_gather")
    path.write_text("x = 1\n")
    with pytest.raises(Problem, match=r"has no ring_all_gather: run the check of 6.11 again"):
        mine.get("ring_all_gather")


def test_a_file_that_takes_the_courses_own_is_none_of_the_learners(home):
    part = mine.BY_FILE["ring"]
    assert mine.borrowed(part) == []
    path = mine.keep("ring", built("mine"))
    assert mine.borrowed(part) == []
    path.write_text(
        "from course_lib.scratch.collectives import ring_all_gather as other, _copy_around\n"
        "from course_lib.scratch.collectives import Peers\n"
        "def ring_all_gather(*args):\n    return other(*args)\n"
    )
    assert mine.borrowed(part) == ["_copy_around", "ring_all_gather"]


def test_places_of_a_traceback_are_those_of_the_learners_files(home):
    own, other = home / "mine" / "mesh.py", home / "demo.py"
    stack = f'  File "{other}", line 3, in main\n    go()\n  File "{own}", line 12, in lines\n'
    stack += f'    return place.pp\n  File "{other}", line 9, in deeper\nError\n'
    assert mine.places(stack) == [f"{own}, line 12, `return place.pp`"]
    assert mine.places(stack.replace("/mine/", "/yours/")) == []
    hung = f"rank 0 was here:\n{stack}rank 1 was here:\n{stack.replace('line 12', 'line 15')}"
    assert [place.split(", ")[1] for place in mine.places(hung)] == ["line 12", "line 15"]


def test_the_folder_is_the_clones_unless_the_home_is_set(home, monkeypatch):
    assert mine.folder() == home / "mine"
    monkeypatch.delenv("COURSE_HOME")
    assert mine.folder().name == "mine" and (mine.folder().parent / "notebooks").is_dir()


def test_every_part_has_a_home_and_a_name_of_its_own():
    names = [name for part in mine.PARTS for name in part.names]
    assert len(set(names)) == len(names)
    for name in names:
        assert callable(mine.get(name, "course")), name
        assert mine.lines(mine.BY_NAME[name], "course") > 3
        assert mine.lines(mine.BY_NAME[name]) is None
