"""`course report`: its checks as text and as JSON, its folder, its exit code."""

import json

import pytest

from course_lib import cli
from course_lib.chapters.ch17_capstone.reporting import texts


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))


def test_it_writes_the_page_and_says_what_is_open(tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["report", "--out", str(out), "--name", "Ada", "--no-pdf"]) == 1
    said = capsys.readouterr().out
    assert "[open] a plan is chosen" in said and f"wrote {out / 'report.html'}" in said
    assert "Ada, 20" in (out / "report.html").read_text(encoding="utf-8")
    cli.main(["report", "--out", str(out), "--no-pdf", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["pdf"] is None and {check["state"] for check in data["checks"]} == {"open"}


def test_it_says_where_the_page_is_if_that_is_not_here(tmp_path, monkeypatch, capsys):
    elsewhere, clone = tmp_path / "elsewhere", tmp_path / "clone"
    monkeypatch.setattr(texts, "folder", lambda: clone / "report")
    for folder, out, said in (
        (elsewhere, [], True),
        (clone, [], False),
        (elsewhere, ["--out", "."], False),
    ):
        folder.mkdir(exist_ok=True, parents=True)
        monkeypatch.chdir(folder)
        assert cli.main(["report", "--no-pdf", *out]) == 1
        printed = capsys.readouterr().out
        assert ("\nthat is beside what you have built: --out . writes it" in printed) == said
    assert (elsewhere / "report.html").exists()
