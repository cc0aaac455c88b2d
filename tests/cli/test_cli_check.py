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
    code, text = said(capsys, ".", "--json")
    assert (code, [each["passed"] for each in json.loads(text)]) == (2, [1, 1, 0])
    assert json.loads(text)[2]["problem"].startswith("c.ipynb is not")


def test_a_folder_for_each_learner_is_graded_and_named(folder, tmp_path, monkeypatch, capsys):
    """All hand in files of the same name, and no cell of a table is a formula."""
    monkeypatch.setitem(NOTEBOOKS, "=1+1.ipynb", ((PASS,), ""))
    for name in ("handed/ada/a.ipynb", "handed/bob/a.ipynb", "handed/bob/.old/a.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    Path("=1+1.ipynb").touch()
    code, text = said(capsys, "handed", "=1+1.ipynb", "--csv")
    files = [row["file"] for row in csv.DictReader(io.StringIO(text)) if row["exercise"] == "total"]
    assert (code, files) == (0, ["handed/ada/a.ipynb", "handed/bob/a.ipynb", "'=1+1.ipynb"])


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


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["absent.ipynb"], "absent.ipynb does not exist"),
        (["a.ipynb", "absent.ipynb"], "absent.ipynb does not exist"),
        (["empty"], "empty is a folder without notebooks"),
        (["c.ipynb"], "course check: c.ipynb is not a notebook: give another\n"),
        (["a.ipynb", "--limit-s", "0"], "limit_s must be above 0"),
        (["a.ipynb", "--memory-gb", "nan"], "memory_gb must be finite"),
    ],
)
def test_what_cannot_be_begun_is_a_sentence(argv, sentence, folder, capsys):
    Path("empty").mkdir()
    assert cli.main(["check", *argv]) == 2
    assert sentence in capsys.readouterr().err and folder in ([], [("c.ipynb", 300, 4)])


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
    until_s, lines = time.monotonic() + 120, []
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


def supervisor_of(begun):
    stat = Path(f"/proc/{begun[0][0]}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="complete on Linux only")
@pytest.mark.parametrize(
    ("who", "number", "code", "words"),
    [
        ("check", signal.SIGINT, 130, "course check: interrupted\n"),
        ("check", signal.SIGKILL, -9, ""),
        ("supervisor", signal.SIGKILL, 2, "could not be graded: the process that kept it was"),
    ],
)
def test_stopped_it_leaves_nothing(stuck, who, number, code, words):
    process, folder = stuck
    begun = started(folder)
    os.kill(process.pid if who == "check" else supervisor_of(begun), number)
    assert process.wait(200) == code and words in process.stderr.read()
    until_s = time.monotonic() + (60 if code == -9 else 0)  # nobody has waited for it
    while not all(gone(pid) and not Path(begun_in).exists() for pid, begun_in in begun):
        assert time.monotonic() < until_s
        time.sleep(0.02)
