import json
import os
import subprocess
import sys
from unittest import mock

import pytest

from course_lib import cli
from course_lib.checking import check, hint, predict, progress, report
from course_lib.checking.questions import record
from course_lib.home import home


def _add(record):
    record["count"] = record.get("count", 0) + 1


def test_nothing_recorded_reads_as_empty(home):
    assert progress.read() == {
        "version": 1,
        "exercises": {},
        "predictions": {},
        "capstone": {},
        "hunts": {},
        "quizzes": {},
        "route": {},
    }
    assert not home.exists()


def test_the_folder_is_the_users_unless_named(monkeypatch):
    monkeypatch.delenv("COURSE_HOME")
    assert home().name == "large-model-course"


DAMAGES = {
    "half a file": b"{",
    "an empty file": b"",
    "a list": b"[]",
    "null": b"null",
    "another encoding": b"\xff\xfe",
    "half a character": b'{"units": "\\ud800"}',
    "too deep": b"[" * 100_000 + b"]" * 100_000,
    "a version in words": b'{"version": "one"}',
    "a section": b'{"exercises": 5}',
    "a record": b'{"quizzes": {"1": 3}}',
    "attempts": b'{"exercises": {"1.1": {"attempts": "many"}}}',
    "attempts below 0": b'{"exercises": {"1.1": {"attempts": -1}}}',
    "hints": b'{"exercises": {"1.1": {"hints": 1.5}}}',
    "status": b'{"exercises": {"1.1": {"status": []}}}',
    "first pass": b'{"exercises": {"1.1": {"first_pass": 3}}}',
    "a prediction": b'{"predictions": {"a": {"yours": true, "at": "now"}}}',
    "a prediction without end": b'{"predictions": {"a": {"yours": Infinity, "at": "now"}}}',
    "a prediction without its time": b'{"predictions": {"a": {"yours": 3}}}',
    "a unit": b'{"predictions": {"a": {"yours": 3, "at": "now", "unit": 3}}}',
    "revised": b'{"predictions": {"a": {"yours": 3, "at": "now", "revised": 3}}}',
    "a revision": b'{"predictions": {"a": {"yours": 3, "at": "now", "revised": [3]}}}',
    "a hunt": b'{"hunts": {"slow": {"best_s": "fast"}}}',
    "best": b'{"quizzes": {"1": {"best": "x"}}}',
    "right": b'{"quizzes": {"1": {"right": null}}}',
}


def use_everything():
    """Everything that writes progress, and the command that shows it."""
    check("1.1", 3)
    hint("1.1")
    predict("a", "How many?", yours=4)
    predict("a", "How many?", yours=5)
    record("1", 1, 1)
    assert cli.main(["progress"]) == 0


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_set_aside_with_a_sentence(home, capsys, damage):
    home.mkdir()
    progress.path().write_bytes(damage)
    assert cli.main(["progress", "--json"]) == 0
    said = capsys.readouterr()
    aside = home / "progress.corrupt-1.json"
    assert said.err.count(f"was damaged; it is kept as {aside}") == 1
    assert json.loads(said.out)["quizzes"] == {} and aside.read_bytes() == damage
    progress.path().write_bytes(damage)
    use_everything()
    assert (home / "progress.corrupt-2.json").read_bytes() == damage
    kept = progress.read()
    assert kept["exercises"]["1.1"]["attempts"] == kept["quizzes"]["1"]["best"] == 1
    assert kept["predictions"]["a"]["revised"][0]["yours"] == 5


def test_what_every_check_writes_is_no_damage(home, capsys):
    for _ in range(2):
        use_everything()
    assert progress.read()["exercises"]["1.1"]["attempts"] == 2
    assert not list(home.glob("*corrupt*")) and capsys.readouterr().err == ""


def test_names_that_are_not_known_are_kept(home):
    home.mkdir()
    text = '{"badges": ["x"], "exercises": {"1.1": {"colour": "red"}}}'
    progress.path().write_text(text)
    progress.update("exercises", "1.1", _add)
    kept = json.loads(progress.path().read_text())
    assert kept["badges"] == ["x"] and kept["exercises"]["1.1"] == {"colour": "red", "count": 1}


@pytest.mark.parametrize("exercises", ['{"1.1": {"attempts": 7}}', '["in another way"]'])
def test_what_a_newer_version_wrote_is_left_alone(home, capsys, exercises):
    home.mkdir()
    text = f'{{"version": 99, "exercises": {exercises}}}'
    progress.path().write_text(text)
    use_everything()
    assert progress.path().read_text() == text and not list(home.glob("*corrupt*"))
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "progress is not saved: a newer version" in said
    assert "run `course upgrade`" in said


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_link_stays_a_link(home, tmp_path):
    """As in a folder that is synchronised between machines."""
    (tmp_path / "cloud").mkdir()
    file = tmp_path / "cloud" / "course.json"
    home.mkdir()
    progress.path().symlink_to(file)
    for count in (1, 2):
        progress.update("exercises", "1.1", _add)
        assert progress.path().is_symlink()
        assert json.loads(file.read_text())["exercises"]["1.1"]["count"] == count
    old = file.read_bytes()
    assert progress.set_aside("reset").read_bytes() == old
    assert progress.path().is_symlink() and progress.read()["exercises"] == {}
    progress.update("exercises", "1.1", _add)
    assert progress.path().is_symlink() and file.exists()


def test_a_failure_while_writing_leaves_the_old_file(monkeypatch):
    progress.update("exercises", "1.1", _add)
    before = progress.path().read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    progress.update("exercises", "1.1", _add)
    assert progress.path().read_bytes() == before


def test_a_closed_home_gets_one_line_and_breaks_nothing(tmp_path, monkeypatch, capsys):
    # A file where the folder should be is closed to root as well, whom permissions do not stop.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "file" / "home"))
    for _ in range(3):
        assert progress.update("exercises", "1.1", _add) == {"count": 1}
    said = capsys.readouterr().err
    assert said.count("progress is not saved") == 1 and said.count("\n") == 1


def test_a_file_system_without_locks_gets_the_same_line(monkeypatch, capsys):
    refuses = mock.Mock(side_effect=NotImplementedError)  # as filelock says it
    monkeypatch.setattr("filelock.FileLock.acquire", refuses)
    assert progress.update("exercises", "1.1", _add) == {"count": 1}
    said = capsys.readouterr().err
    assert "progress is not saved" in said and said.count("\n") == 1
    assert "COURSE_HOME" in said


def test_two_kernels_at_once_lose_nothing():
    # The pause between reading and writing is where an unlocked update would lose records.
    program = (
        "import time\n"
        "from course_lib.checking import progress\n"
        "def add(record):\n"
        "    record['count'] = record.get('count', 0) + 1\n"
        "    time.sleep(0.01)\n"
        "progress.LOCK_TIMEOUT_S = 100\n"
        "for _ in range(8): progress.update('exercises', '1.1', add)\n"
    )
    kernels = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [kernel.wait(timeout=200) for kernel in kernels] == [0, 0, 0]
    assert progress.read()["exercises"]["1.1"]["count"] == 24


def test_the_lock_of_a_killed_kernel_does_not_block():
    program = (
        "import filelock, os, signal\n"
        "from course_lib.home import home\n"
        "home().mkdir()\n"
        "filelock.FileLock(home() / 'progress.lock').acquire()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60)
    assert (home() / "progress.lock").exists()
    assert progress.update("exercises", "1.1", _add) == {"count": 1}
    assert progress.path().exists()


def test_progress_in_one_line():
    everything = report.summary()["exercises"]
    count = len(everything)
    first, second = everything[0], everything[1]
    assert report.in_brief() == (
        f"0 of {count} exercises passed, next: {first['id']} {first['title']}"
    )

    def passed(record):
        record["status"] = "pass"

    progress.update("exercises", second["id"], passed)
    third = everything[2]
    assert report.in_brief() == (
        f"1 of {count} exercises passed, next: {third['id']} {third['title']}"
    )
    progress.update("exercises", everything[-1]["id"], passed)  # what was skipped comes next
    assert report.in_brief().startswith(f"2 of {count} exercises passed, next: {first['id']} ")
    for row in everything:
        progress.update("exercises", row["id"], passed)
    assert report.in_brief() == f"{count} of {count} exercises passed"
