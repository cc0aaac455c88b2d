"""A report is written, replaced where it is ours, and nothing of anybody else's is lost."""

import json
import os
import subprocess

import pytest
from sample import fill

from course_lib import cli
from course_lib.chapters.ch17_capstone.reporting import keep_plan, report, texts, writing
from course_lib.problem import Problem
from course_lib.theory import planner
from course_lib.theory.inputs import Cluster, Layout, Recipe, hardware, models
from course_lib.theory.step.assumptions import CAUTIOUS


def test_an_own_page_is_replaced_and_any_other_renamed(home):
    made = report(pdf=False)
    assert made.html == home / "report" / "report.html" and made.pdf is None
    report("Ada", pdf=False)
    assert "Ada" in made.html.read_text(encoding="utf-8")
    assert sorted(os.listdir(home / "report")) == ["defence.md", "report.html"]
    made.html.write_text(made.html.read_text(encoding="utf-8").replace("Ada", "Bob"), "utf-8")
    (home / "report" / "report.pdf").write_text("printed by Bob")
    report(pdf=False)
    before = home / "report" / "report_before_1.html"
    assert "Bob" in before.read_text(encoding="utf-8")
    assert (home / "report" / "report_before_1.pdf").read_text() == "printed by Bob"
    assert not (home / "report" / "report.pdf").exists()
    made.html.write_text("something else")
    report(pdf=False)
    assert (home / "report" / "report_before_2.html").read_text() == "something else"


def test_the_sample_learner_reports_elsewhere_with_words_from_home(home, tmp_path):
    fill(home)
    found = _plan()
    both = {"optimistic": found, "cautious": found.under(CAUTIOUS)}
    kept = keep_plan(both, Layout(dp=8, accumulation=8, zero_stage=3))
    assert kept is not None and kept.fits and str(kept).count("\n") == 4
    made = report("a sample", tmp_path / "out", pdf=False)
    assert made.html.parent == tmp_path / "out"
    assert made.words == home / "report" / "defence.md"
    page = made.html.read_text(encoding="utf-8")
    assert "44 days if everything hides" in page and "gpt2-124m on 8 H100-SXM" in page
    states = {check.what: check.state for check in made.checks}
    assert states["the plan fits the memory"] == "yes" == states["the defence is written"]
    assert states["gaps over 10 % are explained"] == "no"
    assert made.data()["checks"][0]["state"] == "yes" and "wrote" in str(made)


def _plan():
    h100 = Cluster(hardware.accelerator("H100-SXM"), 1)
    return planner.plan(models.MODELS["gpt2-124m"], Recipe(), h100, 64, sequence=1024)


def test_a_layout_that_cannot_be_is_refused_and_none_waits(capsys):
    both = {"optimistic": _plan()}
    assert keep_plan(both, None) is None
    assert "Write your layout for None" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"this layout cannot be planned: .*8"):
        keep_plan(both, Layout(dp=4))
    with pytest.raises(ValueError, match="plans must be at least 1"):
        keep_plan({}, None)


def too_long(command, **_):
    raise subprocess.TimeoutExpired(command, 60)


@pytest.mark.parametrize(
    ("browser", "run", "words"),
    [
        (None, subprocess.run, "there is no PDF: install Chromium or Google Chrome"),
        ("false", subprocess.run, "did not print the report"),
        ("sleep", too_long, "timed out"),
    ],
)
def test_without_a_browser_that_prints_the_html_is_left(browser, run, words, monkeypatch):
    monkeypatch.setattr(writing, "browser_path", lambda: browser)
    monkeypatch.setattr(writing, "find_spec", lambda _: None)
    monkeypatch.setattr(subprocess, "run", run)
    made = report()
    assert made.pdf is None and made.html.exists()
    assert words in made.note and f"note: {made.note}" in str(made)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Problem, match=r"cannot be written .*: name a folder of yours"):
        report(folder=tmp_path / "file" / "below", pdf=False)


@pytest.mark.skipif(writing.browser_path() is None, reason="no Chromium to print with")
def test_the_pdf_has_pages(home):
    fill(home)
    made = report("李")
    assert made.pdf is not None, made.note
    printed = made.pdf.read_bytes()
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") > 3
    assert writing.PRINTED == made.pdf.name


# --- `course report` --------------------------------------------------------------------------


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
