"""A rank is killed under a real torchrun: training resumes, and nothing remains."""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from together import explained

from course_lib import demos, launch
from course_lib.demos.elastic import program as elastic
from course_lib.demos.elastic.program import Options, Result

QUICK = {"model": "1x16x2", "steps": 6, "every": 2, "kill_after": 3, "batch": 4}


def workers(folder):
    """Processes that were started with this folder's path among their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def warm_server():
    """Started before a test moves the temporary folder: its socket is there."""
    assert launch.run(lambda: None) == [None, None]


@pytest.fixture
def temporary(warm_server, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="course_test_", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield folder
        deadline_s = time.monotonic() + 10
        while workers(folder) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert workers(folder) == []
        left = [name for name in os.listdir(folder) if name.startswith(("course_", "torchelastic"))]
        assert left == []


class Listeners(threading.Thread):
    """Collects where processes listen that were started with this folder in their arguments."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.seen, self.looks, self.over = folder, set(), 0, threading.Event()

    def run(self):
        while not self.over.wait(0.05):
            ours = {process.pid for process in workers(self.folder)}
            self.looks += bool(ours)
            for socket in psutil.net_connections(kind="inet"):
                if socket.status == psutil.CONN_LISTEN and socket.pid in ours:
                    self.seen.add(socket.laddr.ip)


def test_after_a_kill_the_loss_curve_is_the_same(temporary):
    listeners = Listeners(temporary)
    listeners.start()
    result = demos.run("elastic", ranks=2, stream=False, **QUICK)  # verify() compared the curve
    listeners.over.set()
    listeners.join()
    assert listeners.looks > 3  # torchrun and its ranks, while they worked
    assert listeners.seen <= {"127.0.0.1", "::1"}
    assert result.attempts == 2
    assert result.losses == pytest.approx(result.losses_one_process, rel=1e-6)
    assert list(result.repeated) == [2]  # saved after 2 updates, killed after 3
    assert len(result.repeated) == result.predicted_repeated == 1
    assert result.repeated[2][0] == pytest.approx(result.repeated[2][1], rel=1e-6)
    assert result.recovery_s > 0
    assert "rank 1 of 2 was killed after 3 updates" in result.report()


TABLE = [
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : 1 (pid: 10)",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -9 (pid: 11)",
]


def test_when_torchrun_gives_up_the_killed_rank_is_named(tmp_path):
    words = "\n".join(TABLE)
    command = [sys.executable, "-c", f"print({words!r}); raise SystemExit(1)"]
    message = "torchrun ended with exit code 1: rank 1 was killed by SIGKILL"
    with pytest.raises(RuntimeError, match=message):
        elastic._run(command, tmp_path, 60)


def test_a_time_limit_ends_torchrun(temporary):
    command = [sys.executable, "-c", f"import time; time.sleep(600)  # {temporary}"]
    with pytest.raises(RuntimeError, match=r"torchrun did not end within 0.5 s: it said nothing"):
        elastic._run(command, Path(temporary), 0.5)  # the fixture looks for the process


def result(**changes):
    given = {
        "ranks": 2, "killed_rank": 1, "killed_after": 3, "every": 2, "command": "", "attempts": 2,
        "losses": [3.0, 2.0, 1.0], "losses_one_process": [3.0, 2.0, 1.0],
        "repeated": {2: [1.0, 1.0]}, "predicted_repeated": 1, "recovery_s": 1.0,
    }  # fmt: skip
    return Result(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"losses": [3.0, 2.0]}, "2 updates were done instead of 3"),
        ({"losses": [3.0, 2.1, 1.0]}, "the loss of update 1 differs"),
        ({"repeated": {}}, "0 updates were done again, predicted 1"),
    ],
)
def test_what_is_not_equal_is_refused(changes, message):
    assert result().verify() == result()
    with pytest.raises(AssertionError, match=message):
        result(**changes).verify()


def test_bad_options_are_explained():
    explained(
        Options,
        [
            ({"kill_after": 10}, "kill_after must be below steps 10, got 10"),
            ({"every": 0}, "every must be at least 1"),
            ({"limit_s": 0}, "limit_s must be above 0"),
            ({"max_restarts": -1}, "max_restarts must be at least 0"),
            ({"model": "x"}, "neither one of tiny"),
        ],
    )


def test_a_rank_that_does_not_exist_cannot_be_killed():
    with pytest.raises(launch.RankFailed, match="kill_rank must be below the number of ranks 2"):
        demos.run("elastic", ranks=2, stream=False, kill_rank=2)


def test_the_cause_is_read_from_torchruns_table():
    assert elastic._cause(TABLE).startswith("rank 1 was killed by SIGKILL")
    assert elastic._cause(TABLE[:2]).startswith("rank 0 ended with exit code 1")
    assert elastic._cause(["last"]) == "last"
    assert elastic._cause([]) == "it said nothing"


def test_the_worker_ends_when_its_agent_or_its_folder_is_not_there(tmp_path):
    for folder, agent in ((tmp_path, 1), (tmp_path / "gone", None)):

        def watch(folder=folder, agent=agent):
            from course_lib.demos.elastic import worker as elastic_worker

            elastic_worker._watch(folder, agent or os.getppid())

        with pytest.raises(launch.RankFailed, match="ended with exit code 1"):
            launch.run(watch, ranks=1, timeout_s=60)
