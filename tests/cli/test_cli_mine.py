"""`course mine`: what is built, as text and as JSON."""

import json

import pytest

from course_lib import cli, mine


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    return tmp_path


def test_it_tells_whose_each_part_is(home, capsys):
    (home / "mine" / "mesh.py").write_text("from course_lib.scratch.three_d import Mesh\n")
    assert cli.main(["mine"]) == 0
    said = capsys.readouterr().out
    assert f"1 of {len(mine.PARTS)} parts are yours, kept in {home / 'mine'}" in said
    assert max(map(len, said.splitlines()[:-1])) <= 100
    cli.main(["mine", "--json"])
    data = json.loads(capsys.readouterr().out)
    (mesh,) = (part for part in data["parts"] if part["build"] == "13.12")
    assert mesh["file"] == str(home / "mine" / "mesh.py")
