"""`course check`: which files, what is printed, exit codes, and how it ends when it is stopped."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_lib import cli
from course_lib.checking.submissions import grade
from course_lib.checking.submissions.answers import WORK
from course_lib.checking.submissions.grade import Graded, Row

PASS = Row("1.1", "pass", "", "[pass] 1.1 A")
OPEN = Row("1.2", "todo", "not answered yet", "[todo] 1.2 B: not answered yet")
NOTEBOOKS = {
    "b.ipynb": ((PASS, OPEN), ""),
    "a.ipynb": ((PASS,), ""),
    "c.ipynb": ((), "c.ipynb is not a notebook: give another"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of notebooks, whose grading is not carried out; the list of those asked for."""
    asked = []

    def graded(path, limits):
        asked.append((path.name, limits.seconds, limits.memory_gb))
        rows, problem = NOTEBOOKS[path.name]
        return Graded(path, rows, problem)

    monkeypatch.setattr(grade, "grade_notebook", graded)
    monkeypatch.chdir(tmp_path)
    for name in NOTEBOOKS:
        (tmp_path / name).touch()
    return asked


def said(capsys, *argv):
    code = cli.main(["check", *argv])
    return code, capsys.readouterr().out


def test_one_notebook_is_a_table_and_a_total(folder, capsys):
    table = "[pass] 1.1 A\n[todo] 1.2 B: not answered yet\n1 of 2 exercises passed\n"
    assert said(capsys, "b.ipynb") == (1, table)
    assert said(capsys, "a.ipynb") == (0, "[pass] 1.1 A\n1 of 1 exercises passed\n")
    code, text = said(capsys, "b.ipynb", "--json")
    data = json.loads(text)
    assert (code, data["passed"], data["total"], data["file"]) == (1, 1, 2, "b.ipynb")
    assert data["exercises"][1] == {
        "id": "1.2", "status": "todo", "reason": "not answered yet", "line": OPEN.line
    }  # fmt: skip


def test_a_notebook_that_cannot_be_graded_is_a_sentence(folder, capsys):
    assert cli.main(["check", "c.ipynb"]) == 2
    assert capsys.readouterr().err == "course check: c.ipynb is not a notebook: give another\n"


def test_a_folder_is_all_its_notebooks_and_goes_on_after_a_bad_one(folder, capsys):
    Path(".hidden.ipynb").touch()
    code, text = said(capsys, ".", "a.ipynb", "--limit-s", "9", "--memory-gb", "2")
    assert folder == [("a.ipynb", 9, 2), ("b.ipynb", 9, 2), ("c.ipynb", 9, 2)]
    assert code == 2
    assert text.splitlines() == [
        "a.ipynb", PASS.line, "1 of 1 exercises passed", "",
        "b.ipynb", PASS.line, OPEN.line, "1 of 2 exercises passed", "",
        "c.ipynb", "c.ipynb is not a notebook: give another", "",
        "1 of 3 notebooks passed all exercises",
    ]  # fmt: skip
    assert said(capsys, "a.ipynb", "b.ipynb")[0] == 1


def test_a_folder_for_each_learner_is_graded_and_named(folder, tmp_path, capsys):
    """All hand in files of the same name."""
    for name in ("handed/ada/a.ipynb", "handed/bob/a.ipynb", "handed/bob/.old/a.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    code, text = said(capsys, "handed", "--csv")
    files = [row["file"] for row in csv.DictReader(io.StringIO(text)) if row["exercise"] == "total"]
    assert (code, files) == (0, ["handed/ada/a.ipynb", "handed/bob/a.ipynb"])


def test_several_notebooks_are_a_list_in_json(folder, capsys):
    code, text = said(capsys, ".", "--json")
    assert (code, [each["passed"] for each in json.loads(text)]) == (2, [1, 1, 0])
    assert json.loads(text)[2]["problem"].startswith("c.ipynb is not")


def test_csv_has_a_line_for_each_exercise_and_a_total_for_each_file(folder, capsys):
    code, text = said(capsys, ".", "--csv")
    assert (code, list(csv.reader(io.StringIO(text)))) == (
        2,
        [
            ["file", "exercise", "status", "reason"],
            ["a.ipynb", "1.1", "pass", ""],
            ["a.ipynb", "total", "pass", "1 of 1 exercises passed"],
            ["b.ipynb", "1.1", "pass", ""],
            ["b.ipynb", "1.2", "todo", "not answered yet"],
            ["b.ipynb", "total", "fail", "1 of 2 exercises passed"],
            ["c.ipynb", "total", "problem", "c.ipynb is not a notebook: give another"],
        ],
    )


def test_no_cell_of_a_table_is_a_formula(tmp_path, folder, monkeypatch, capsys):
    monkeypatch.setitem(NOTEBOOKS, "=1+1.ipynb", ((PASS,), ""))
    (tmp_path / "=1+1.ipynb").touch()
    assert "\n'=1+1.ipynb,1.1," in said(capsys, "=1+1.ipynb", "--csv")[1]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["absent.ipynb"], "absent.ipynb does not exist"),
        (["a.ipynb", "absent.ipynb"], "absent.ipynb does not exist"),
        (["empty"], "empty is a folder without notebooks"),
        (["a.ipynb", "--limit-s", "0"], "limit_s must be above 0"),
        (["a.ipynb", "--memory-gb", "nan"], "memory_gb must be finite"),
    ],
)
def test_what_cannot_be_begun_is_a_sentence(argv, sentence, folder, capsys):
    Path("empty").mkdir()
    assert cli.main(["check", *argv]) == 2
    assert sentence in capsys.readouterr().err and folder == []


def test_help_says_what_grading_protects_from_and_from_what_not(capsys):
    with pytest.raises(SystemExit):
        cli.main(["check", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "nothing that it prints or redefines counts" in text and "no sandbox" in text


# --- the real command, stopped ----------------------------------------------------------------

FOREVER = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
open("marker", "a").write(f"{os.getpid()} {os.environ['COURSE_GRADING']}\\n")
time.sleep(600)
check("1.1", 1)
"""


@pytest.fixture
def stuck(tmp_path):
    """`course check` of a notebook that never ends: its process, and where it puts folders."""
    cell = {"cell_type": "code", "metadata": {}, "source": FOREVER}
    path = tmp_path / "forever.ipynb"
    path.write_text(json.dumps({"cells": [cell], "metadata": {}}))
    command = [sys.executable, "-m", "course_lib", "check", str(path)]
    # In the background of a shell SIGINT comes ignored, and what we start would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    yield process, tmp_path
    process.kill()
    process.communicate()


def started(folder):
    """(process id, folder) of both processes of the submission, once they run."""
    until_s, lines = time.monotonic() + 30, []
    while len(lines) < 2:
        assert time.monotonic() < until_s
        time.sleep(0.02)
        found = folder.glob(f"course_check_*/{WORK}/marker")
        lines = [line.split() for marker in found for line in marker.read_text().splitlines()]
    return lines


def gone(pid):
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def wait_until_gone(begun):
    until_s = time.monotonic() + 15
    for pid, folder in begun:
        while not gone(pid) or Path(folder).exists():
            assert time.monotonic() < until_s, f"{pid} and {folder} are left"
            time.sleep(0.02)


def test_ctrl_c_is_a_sentence_and_130_and_leaves_nothing(stuck):
    process, folder = stuck
    begun = started(folder)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr.read() == "course check: interrupted\n"
    assert all(gone(pid) and not Path(folder).exists() for pid, folder in begun)


@pytest.mark.skipif(sys.platform != "linux", reason="complete on Linux only")
def test_a_killed_check_leaves_nothing(stuck):
    process, folder = stuck
    begun = started(folder)
    process.kill()
    wait_until_gone(begun)


@pytest.mark.skipif(sys.platform != "linux", reason="complete on Linux only")
def test_a_killed_supervisor_leaves_nothing_and_its_file_is_not_graded(stuck):
    process, folder = stuck
    begun = started(folder)
    supervisor = int(Path(f"/proc/{begun[0][0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    assert process.wait(60) == 2
    assert "could not be graded: the process that kept it was killed" in process.stderr.read()
    assert all(gone(pid) and not Path(folder).exists() for pid, folder in begun)
