import json
import os
import subprocess
import sys

import pytest

from course_lib.checking import progress


def _add(record):
    record["count"] = record.get("count", 0) + 1


def test_nothing_recorded_reads_as_empty(home):
    assert progress.read() == {"version": 1, "exercises": {}, "predictions": {}, "quizzes": {}}
    assert not home.exists()


def test_a_record_is_kept():
    assert progress.update("exercises", "1.1", _add) == {"count": 1}
    assert progress.update("exercises", "1.1", _add) == {"count": 2}
    assert json.loads(progress.path().read_text())["exercises"] == {"1.1": {"count": 2}}


def test_the_folder_is_the_users_unless_named(monkeypatch):
    monkeypatch.delenv("COURSE_HOME")
    assert progress.home().name == "large-model-course"


def test_a_corrupt_file_is_set_aside_with_a_sentence(home, capsys):
    home.mkdir()
    damages = (
        b"{",
        b"",
        b"[]",
        b"null",
        b'{"exercises": 5}',
        b'{"quizzes": {"1": 3}}',
        b"\xff\xfe",
    )
    for number, damage in enumerate(damages, start=1):
        progress.path().write_bytes(damage)
        progress.update("exercises", "1.1", _add)
        assert (home / f"progress.corrupt-{number}.json").read_bytes() == damage
        assert progress.read()["exercises"]["1.1"]["count"] == 1
        assert capsys.readouterr().out.count("was damaged; it is kept as") == 1, damage


def test_what_a_newer_release_wrote_is_kept(home):
    home.mkdir()
    progress.path().write_text('{"version": 2, "exercises": {}, "badges": ["x"]}')
    progress.update("exercises", "1.1", _add)
    kept = json.loads(progress.path().read_text())
    assert kept["badges"] == ["x"] and kept["version"] == 2


def test_a_failure_while_writing_leaves_the_old_file_and_no_rubbish(home, monkeypatch):
    progress.update("exercises", "1.1", _add)
    before = progress.path().read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    progress.update("exercises", "1.1", _add)
    assert progress.path().read_bytes() == before
    assert not list(home.glob("*.tmp"))


def test_a_closed_home_gets_one_line_and_breaks_nothing(tmp_path, monkeypatch, capsys):
    # A file where the folder should be is closed to root as well, whom permissions do not stop.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "file" / "home"))
    for _ in range(3):
        assert progress.update("exercises", "1.1", _add) == {"count": 1}
    out = capsys.readouterr().out
    assert out.count("progress is not saved") == 1 and out.count("\n") == 1
    assert "COURSE_HOME" in out


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not stop root"
)
def test_a_read_only_home_gets_one_line(home, capsys):
    home.mkdir(mode=0o500)
    progress.update("exercises", "1.1", _add)
    assert "progress is not saved" in capsys.readouterr().out


def test_two_kernels_at_once_lose_nothing():
    # The pause between reading and writing is where an unlocked update would lose records.
    program = (
        "import time\n"
        "from course_lib.checking import progress\n"
        "def add(record):\n"
        "    record['count'] = record.get('count', 0) + 1\n"
        "    time.sleep(0.01)\n"
        "for _ in range(20): progress.update('exercises', '1.1', add)\n"
    )
    kernels = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [kernel.wait(timeout=60) for kernel in kernels] == [0, 0, 0]
    assert progress.read()["exercises"]["1.1"]["count"] == 60


def test_the_lock_of_a_killed_kernel_does_not_block():
    program = (
        "import filelock, os, signal\n"
        "from course_lib.checking import progress\n"
        "progress.home().mkdir()\n"
        "filelock.FileLock(progress.home() / 'progress.lock').acquire()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60)
    assert (progress.home() / "progress.lock").exists()
    assert progress.update("exercises", "1.1", _add) == {"count": 1}
    assert progress.path().exists()


def test_a_reset_keeps_the_old_file(home):
    progress.update("exercises", "1.1", _add)
    assert progress.set_aside("reset") == home / "progress.reset-1.json"
    assert progress.read()["exercises"] == {}
