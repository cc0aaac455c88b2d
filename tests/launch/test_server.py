"""What happens to launches when the server, a keeper or the parent is killed, stopped or forked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from leftovers import needs_signals, our_ranks, wait_for

from course_lib import demos, launch
from course_lib.launch import runner, server
from course_lib.launch.errors import Stop
from course_lib.launch.job import Folder
from course_lib.launch.server_program import _Supervisor

pytestmark = needs_signals


def pid() -> int:
    """The process id of the server."""
    assert launch.run(lambda: 1, ranks=1) == [1]
    assert server._server is not None
    return server._server.process.pid


# Each new server imports torch, which takes seconds: a killed one is left for the next test.


def test_a_server_killed_during_a_launch_disturbs_no_rank_and_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def outlive() -> int:
        killed = psutil.Process(os.getppid()).parent()  # the keeper's
        killed.kill()
        wait_for(lambda: killed.status() == psutil.STATUS_ZOMBIE)
        return 7

    pid()
    # Nobody notices before the next launch asks for a keeper.
    monkeypatch.setattr(server._server.process, "poll", lambda: None)
    assert launch.run(outlive, ranks=1) == [7]
    monkeypatch.setattr(server, "wait_until_warm", lambda *_: None)
    assert launch.run(lambda: 1) == [1, 1]


def test_a_stopped_server_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_ANSWER_S", 0.5)
    stopped = pid()
    os.kill(stopped, signal.SIGSTOP)
    assert launch.run(lambda: 1) == [1, 1]
    wait_for(lambda: not psutil.pid_exists(stopped))


def known() -> bool:
    """On a rank: whether the server had imported this module before."""
    return "course_lib.checking.builds.on_rank.watched" in sys.modules


def test_what_ranks_need_of_the_library_is_imported_once() -> None:
    from course_lib.checking.builds.on_rank.watched import groups_asked_for

    pid()
    assert server._server is not None
    server._server.imported.clear()
    launch.run(callable, groups_asked_for)
    assert groups_asked_for.__module__ in server._server.imported
    assert launch.run(known) == [True, True]


def test_a_stop_while_the_server_imports_is_made_up_for() -> None:
    before = pid()
    assert server._server is not None
    server._server.imported.clear()
    stopped = Stop()
    stopped.pressed = True
    os.kill(before, signal.SIGSTOP)  # so that it has not imported it already
    with pytest.raises(KeyboardInterrupt):
        server.wait_until_warm(stopped, modules=["course_lib.figures.ranks"])
    os.kill(before, signal.SIGCONT)
    assert launch.run(lambda: 1) == [1, 1]
    assert pid() == before


def test_the_server_has_one_thread_with_all_demos_in_it_and_a_session_of_its_own() -> None:
    """A process with several threads cannot be forked safely. Ctrl-C is for its parent."""
    server_pid = pid()
    assert os.getsid(server_pid) == server_pid != os.getsid(0)
    modules = [demos.load(name).__name__ for name in demos.DEMOS]
    server.wait_until_warm(Stop(), modules=modules)
    assert psutil.Process(server_pid).num_threads() == 1


def test_a_server_that_dies_as_it_imports_is_replaced_and_one_without_torch_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = pid()
    os.kill(killed, signal.SIGSTOP)
    # It dies while it imports for the next launch, and the one that replaces it ends at once.
    meanwhile = iter([lambda: os.kill(killed, signal.SIGKILL)])
    server.wait_until_warm(Stop(), lambda: next(meanwhile, int)(), ["course_lib.demos.ddp.program"])
    (tmp_path / "torch.py").write_text("raise ImportError('a broken torch')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OSError, match=r"ended while it imported torch \(.*a broken torch\)"):
        launch.run(lambda: 1)
    assert server._server is None  # the next launch tries again


def test_a_killed_supervisor_takes_its_ranks_with_it() -> None:
    def betray() -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        if launch.init().rank == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(launch.RankFailed, match="was killed by SIGKILL"):
        launch.run(betray)
    wait_for(lambda: our_ranks() == [])


def test_a_supervisor_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_END_S", 0.5)
    monkeypatch.setattr(runner, "_LEAVE_S", 0.5)  # nobody says that the rank has ended

    def stop_the_supervisor() -> None:
        os.kill(os.getppid(), signal.SIGSTOP)

    assert launch.run(stop_the_supervisor, ranks=1) == [None]
    wait_for(lambda: our_ranks() == [])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_of_the_parent_has_a_server_of_its_own() -> None:
    before, child = pid(), os.fork()
    if child == 0:
        code = 1
        try:
            own = server._server is None
            code = 0 if own and launch.run(lambda: 1, stream=False) == [1, 1] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pid() == before
    wait_for(lambda: our_ranks() == [])  # the child's server


def test_a_refused_process_is_said_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    ours, theirs = server.socket.socketpair()
    monkeypatch.setattr(server, "supervisor_for", lambda *_: ours)
    ranks = server.SupervisedRanks(Folder(tmp_path), 2, Stop())
    before = signal.getsignal(signal.SIGCHLD)
    supervisor = _Supervisor(theirs, str(tmp_path))
    monkeypatch.setattr(os, "fork", refuse)
    supervisor.start(2)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)
    with pytest.raises(OSError, match=r"refused to start rank 0 .*raise .*\(ulimit -u\)"):
        ranks.wait()
    theirs.close()
    ours.close()


def test_without_fork_each_rank_is_a_fresh_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FORKS", False)
    offset = 10
    assert launch.run(lambda: offset + launch.init().rank, stream=False) == [10, 11]
    empty = Folder(tmp_path)  # without a job
    ranks = server.started(empty, 2, Stop())
    while None in ranks.exit_codes:
        ranks.wait()
    assert ranks.exit_codes == [1, 1]
    ranks.end()


# --- what ranks start and do not want to be found -------------------------------------------------


def escape(times: int) -> int:
    """Start a process in a session of its own, several parents away, and go on."""
    program = "import os, time\n" + "os.fork() and os._exit(0)\nos.setsid()\n" * times
    environment = {"PATH": os.environ["PATH"], "COURSE_TEST_MARK": os.environ["COURSE_TEST_MARK"]}
    subprocess.Popen([sys.executable, "-c", program + "time.sleep(60)"], env=environment)
    time.sleep(0.3)
    return 1


@pytest.mark.skipif(sys.platform != "linux", reason="complete on Linux only")
def test_a_process_that_left_its_session_ends_with_the_launch() -> None:
    assert launch.run(escape, 2) == [1, 1]  # the fixture looks for it
