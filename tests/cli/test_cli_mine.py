"""`course mine`: what is built, as text and as JSON."""

import json
import re

import pytest

from course_lib import cli, mine
from course_lib.demos.shared.options import where_to_look


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    return tmp_path


def test_it_tells_whose_each_part_is(home, capsys):
    (home / "mine" / "mesh.py").write_text("class Mesh:\n    pass\n")
    assert cli.main(["mine"]) == 0
    said = capsys.readouterr().out
    assert f"1 of {len(mine.PARTS)} parts are yours, kept in {home / 'mine'}" in said
    assert max(map(len, said.splitlines()[:-1])) <= 100
    cli.main(["mine", "--json"])
    data = json.loads(capsys.readouterr().out)
    (mesh,) = (part for part in data["parts"] if part["build"] == "13.12")
    assert mesh["file"] == str(home / "mine" / "mesh.py")


def test_a_broken_file_and_a_borrowed_one_do_not_hide_the_others(home, capsys):
    (home / "mine" / "mesh.py").write_text("class Mesh:\n    pass\n")
    (home / "mine" / "ring.py").write_text("def ring_all_gather(:\n")
    (home / "mine" / "claims.py").write_text("x = nothing\n")
    (home / "mine" / "tree.py").write_text(
        "from course_lib.scratch.collectives import tree_all_reduce as ours\n"
        "def tree_all_reduce(*args):\n    return ours(*args)\n"
    )
    assert cli.main(["mine"]) == 1
    said = capsys.readouterr().out
    assert f"1 of {len(mine.PARTS)} parts are yours" in said
    assert said.count("cannot be loaded") == 3  # ring; claims, and why
    assert "ring.py, line 1, is no Python" in said and "nothing" in said
    assert "not yours, it takes the course's tree_all_reduce" in said


@pytest.mark.parametrize(
    ("frame", "record", "parts", "see"),
    [
        ("mine/ring.py", None, "mine", "your part was at .*mine/ring.py, line 7, `go..`: mend it$"),
        ("mine/ring.py", "kept", "mine", "line 7.*mend it, or see `course diagnose kept`"),
        ("demo.py", None, "mine", "does it run with `--parts course`"),
        ("demo.py", None, "course", "see `course doctor`"),
        ("demo.py", "kept", "mine", "see `course diagnose kept`"),
    ],
)
def test_a_failed_demo_says_where_to_look(home, frame, record, parts, see):
    trace = f'Traceback:\n  File "{home / frame}", line 7, in work\n    go()\nKeyError: 1\n'
    assert re.search(see, where_to_look(trace, record, parts))
