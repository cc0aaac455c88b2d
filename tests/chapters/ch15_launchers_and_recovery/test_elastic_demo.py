"""A rank, or its node, is killed under a real torchrun: training resumes, and nothing remains."""

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from course_lib import demos, launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.elastic import program, worker
from course_lib.chapters.ch15_launchers_and_recovery.demos.elastic.program import Agent, Options
from course_lib.launch import two_nodes

BUSY_S = 280.0  # for what takes half a minute on a quiet machine
QUICK = {"model": "1x16x2", "steps": 6, "every": 2, "kill_after": 3, "batch": 4}


def workers(folder):
    """Processes that were started with this folder among their arguments, or as their TMPDIR."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("TMPDIR", "")]
            if str(folder) in " ".join(words):
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
    options = QUICK | {"limit_s": BUSY_S}
    # verify() compared the curve
    result = demos.run("elastic", ranks=2, stream=False, timeout_s=BUSY_S, **options)
    listeners.over.set()
    listeners.join()
    assert listeners.looks > 3  # torchrun and its ranks, while they worked
    assert listeners.seen <= {"127.0.0.1", "::1"}
    assert result.attempts == 2
    assert list(result.repeated) == [2]  # saved after 2 updates, killed after 3
    assert result.repeated[2][0] == pytest.approx(result.repeated[2][1], rel=1e-6)
    assert result.recovery_s > 0
    assert "rank 1 of 2 was killed after 3 updates" in result.report()


@pytest.mark.skipif(two_nodes.obstacle() is not None, reason=str(two_nodes.obstacle()))
def test_a_lost_node_comes_back_and_the_loss_curve_is_the_same(temporary):
    options = QUICK | {"every": 3, "kill_after": 5, "away_s": 1.0, "limit_s": BUSY_S}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    argv = ["elastic", "--json", *words]
    first, second = launch.run_on_two_nodes("course_lib.demos", argv, mbit=1000, timeout_s=BUSY_S)
    result = json.loads(first.splitlines()[-1])
    assert second == ""
    assert (result["ranks"], result["nodes"], result["killed_rank"]) == (2, 2, 1)
    assert result["attempts"] == 2
    assert list(result["repeated"]) == ["3", "4"]  # saved after 3 updates, lost after 5
    assert all(before == after for before, after in result["repeated"].values())  # every bit
    assert result["recovery_s"] > 5  # a silent agent counts as there for some 15 s
    assert two_nodes.LINK not in os.listdir("/sys/class/net")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_node_that_was_killed_is_started_once_more(tmp_path):
    said = tmp_path / "output"
    words = ["sh", "-c", "echo started; test $(wc -l < $0) = 2 || kill -9 $$", str(said)]
    node = Agent(words, dict(os.environ), said)
    with pytest.raises(program.Killed, match="torchrun ended with exit code -9: started"):
        program._run(node, Options(away_s=0.0), may_be_lost=False)
    said.unlink()
    start_s = time.monotonic()
    program._run(node, Options(away_s=0.3), may_be_lost=True)
    assert said.read_text() == "started\n" * 2
    assert time.monotonic() - start_s > 0.3


def test_the_last_rank_is_killed_unless_another_is_named(monkeypatch):
    node = two_nodes.ADDRESSES[0]
    monkeypatch.setenv("MASTER_ADDR", node)
    for asked, ranks, killed in ((-1, 2, 1), (0, 2, 0), (-1, 4, 3), (2, 4, 2)):
        assert program._killed_rank(Options(kill_rank=asked), ranks, ranks_here=2) == killed
    for address, rank, message in (
        (node, 1, "kill_rank must be at least 2 on two nodes, got 1: node 0 has"),
        (node, 4, "kill_rank must be below the number of ranks 4"),
        ("192.168.0.1", 1, "elastic needs one machine, .* nodes of one: course demo elastic --two"),
    ):
        monkeypatch.setenv("MASTER_ADDR", address)
        with pytest.raises(ValueError, match=message):
            program._killed_rank(Options(kill_rank=rank), ranks=4, ranks_here=2)


def test_agents_of_two_nodes_meet_at_the_first(tmp_path):
    first, second = (program.one_of_two(tmp_path, 3, ["-m", "job"], node) for node in (0, 1))
    for node, words in enumerate((first.command, second.command)):
        assert f"--rdzv-endpoint={two_nodes.ADDRESSES[0]}:29400" in words
        assert f"--local-addr={two_nodes.ADDRESSES[node]}" in words
        assert f"--rdzv-conf=is_host={1 - node}" in words
        assert words[-2:] == ["-m", "job"] and "--nproc-per-node=3" in words
    assert first.output != second.output


TABLE = [
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : 1 (pid: 10)",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -9 (pid: 11)",
]


def test_when_torchrun_gives_up_the_cause_is_read_from_its_table(tmp_path):
    command = [sys.executable, "-c", f"print({chr(10).join(TABLE)!r}); raise SystemExit(1)"]
    message = "torchrun ended with exit code 1: rank 1 was killed by SIGKILL"
    with pytest.raises(RuntimeError, match=message):
        Agent(command, dict(os.environ), tmp_path / "output").run(60)
    assert program.cause(TABLE[:2]).startswith("rank 0 ended with exit code 1")
    assert program.cause(["last"]) == "last"


def test_a_time_limit_ends_torchrun(temporary):
    command = [sys.executable, "-c", f"import time; time.sleep(600)  # {temporary}"]
    with pytest.raises(RuntimeError, match=r"torchrun did not end within 0.5 s: it said nothing"):
        # The fixture looks for the process.
        Agent(command, dict(os.environ), Path(temporary, "output")).run(0.5)


def test_the_worker_ends_when_its_agent_or_its_folder_is_not_there(tmp_path):
    for folder, parent in ((tmp_path, 1), (tmp_path / "gone", None)):

        def watch(folder=folder, parent=parent):
            worker._watch(folder, parent or os.getppid())

        with pytest.raises(launch.RankFailed, match="ended with exit code 1"):
            launch.run(watch, ranks=1, timeout_s=60)
