"""Every command speaks to terminals of any encoding: what that lacks becomes a question mark."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import building, cli, doctor
from course_lib.building.folders import Outcome
from course_lib.checking.submissions import grade, notebook
from course_lib.checking.submissions.grade import Row
from course_lib.demos.__main__ import main as run_demo

ODD = "× µs – α ≥ 节点 é"  # none of the three has all of these
COMMANDS = f"""--help|memory llama3-8b --derive|memory {ODD[-1]}|plan gpt2-124m --batch 8|progress
demo --list|demo {ODD[0]}|doctor --quick|build --check|check any.ipynb"""


def old_terminal(monkeypatch, encoding):
    """Put stdout and stderr into an old terminal; calling the result gives all that was printed."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])

    def printed():
        for stream in streams:
            stream.flush()
        return "".join(stream.buffer.getvalue().decode(encoding) for stream in streams)

    return printed


@pytest.fixture(autouse=True)
def odd_results(monkeypatch):
    """What takes seconds to find out is made up, in odd letters."""
    rows = (Row(ODD, "pass", ODD, ODD),)
    monkeypatch.setattr(doctor, "examine", lambda start_ranks: [doctor.Finding(ODD, "ok", ODD)])
    monkeypatch.setattr(building, "compare", lambda root: [Outcome(root / ODD, "stale")])
    monkeypatch.setattr(notebook, "notebooks_at", lambda paths: paths)
    monkeypatch.setattr(grade, "grade_notebook", lambda path, limits: grade.Graded(path, rows))
    monkeypatch.setattr("course_lib.demos.__main__.USAGE", ODD)


@pytest.mark.parametrize("encoding", ["gbk", "latin-1", "ascii"])
def test_no_command_fails_for_its_letters(encoding, monkeypatch):
    printed = old_terminal(monkeypatch, encoding)
    for command in COMMANDS.replace("\n", "|").split("|"):
        try:
            assert cli.main(command.split()) in (0, 1, 2), command
        except SystemExit as end:
            assert end.code == 0
    with pytest.raises(SystemExit):
        run_demo(["--help"])
    replaced = ODD.encode(encoding, "replace").decode(encoding)
    assert "?" in replaced and replaced in printed()


def test_json_has_no_question_marks(monkeypatch):
    printed = old_terminal(monkeypatch, "ascii")
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(printed())[0]["what"] == ODD


def test_a_real_process_with_such_an_encoding():
    command = [sys.executable, "-m", "course_lib", "flops", "gpt2-124m"]
    environment = {**os.environ, "PYTHONIOENCODING": "gbk", "LC_ALL": "C"}
    root = Path(cli.__file__).parents[2]
    done = subprocess.run(command, capture_output=True, env=environment, cwd=root)
    assert done.returncode == 0 and not done.stderr
    assert "gpt2-124m, a step of 1,024 tokens" in done.stdout.decode("gbk")
