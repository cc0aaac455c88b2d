"""Every way in which a rank can fail: what the reader is told, and that nothing remains."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from leftovers import needs_signals, our_ranks

from course_lib import launch


def failure(function: object, *, timeout_s: float = 20.0, ranks: int = 2) -> launch.RankFailed:
    """The RankFailed that running the function raises."""
    with pytest.raises(launch.RankFailed) as caught:
        launch.run(function, timeout_s=timeout_s, ranks=ranks)
    return caught.value


def test_a_rank_raises() -> None:
    def divide() -> float:
        return 1 / (1 - launch.init().rank)

    error = failure(divide)
    assert error.rank == 1
    assert error.reason == "raised ZeroDivisionError: division by zero"
    assert str(error).startswith(f"rank 1 {error.reason}\n\nTraceback")
    assert "return 1 / (1 - launch.init().rank)" in error.traceback
    assert "course_lib/launch" not in error.traceback  # none of our own frames


def test_the_rank_that_raised_first_is_named_not_those_that_lost_it() -> None:
    def raise_while_others_wait() -> None:
        import torch.distributed as dist

        if dist.get_rank() == 2:
            raise KeyError("the cause")
        dist.barrier()

    for _ in range(3):
        error = failure(raise_while_others_wait, ranks=4)
        assert (error.rank, error.reason) == (2, "raised KeyError: 'the cause'")


def test_a_rank_raises_while_another_computes() -> None:
    def raise_or_compute() -> None:
        if launch.init().rank == 0:
            raise ValueError("no")
        time.sleep(60)

    start = time.monotonic()
    assert failure(raise_or_compute).rank == 0
    assert time.monotonic() - start < 3  # nobody waits for the one that computes


@needs_signals
def test_a_rank_is_killed() -> None:
    def die_while_others_wait() -> None:
        import torch.distributed as dist

        if dist.get_rank() == 1:
            print("last words")
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    for _ in range(3):
        error = failure(die_while_others_wait)
        assert error.rank == 1
        assert "was killed by SIGKILL" in error.reason and "memory" in error.reason
        assert error.traceback == "last words"


@needs_signals
def test_a_rank_crashes() -> None:
    error = failure(lambda: os.kill(os.getpid(), signal.SIGSEGV), ranks=1)
    assert error.reason == "was killed by SIGSEGV"


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_leaves_without_a_result(code: int) -> None:
    error = failure(lambda: os._exit(code), ranks=1)
    assert error.reason == f"ended with exit code {code} before it returned a result"


def test_a_rank_calls_sys_exit() -> None:
    error = failure(lambda: sys.exit(0), ranks=1)
    assert error.reason == "called sys.exit(0) instead of returning a result"


def test_a_rank_hangs_and_its_stack_is_shown() -> None:
    def stuck() -> None:
        def wait_for_nothing() -> None:
            time.sleep(60)

        if launch.init().rank == 1:
            wait_for_nothing()

    start = time.monotonic()
    error = failure(stuck, timeout_s=1)
    assert time.monotonic() - start < 3
    assert error.rank == 1
    assert error.reason == "hung: it gave no result within 1 s; rank 0 had returned already"
    assert "rank 1 was here:" in error.traceback
    assert "in wait_for_nothing\n    time.sleep(60)" in error.traceback


def test_a_rank_computes_endlessly() -> None:
    def busy() -> None:
        while True:
            sum(range(100))

    error = failure(busy, timeout_s=2)
    assert "was still computing: it gave no result within 2 s, nor did rank" in error.reason
    assert "Its processor time grew by" in error.reason and "larger timeout_s" in error.reason
    assert error.traceback.count("in busy") == 2


@needs_signals
def test_a_rank_hangs_with_the_interpreter_locked() -> None:
    def locked() -> None:
        import ctypes

        ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the lock: no other Python thread runs

    error = failure(locked, timeout_s=1, ranks=1)
    assert "hung" in error.reason and "in locked" in error.traceback


def test_a_collective_that_not_all_ranks_call() -> None:
    def forgetful() -> None:
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))
        else:
            time.sleep(60)

    error = failure(forgetful, timeout_s=1)
    assert "hung" in error.reason
    assert "dist.all_reduce(torch.ones(1))" in error.traceback  # rank 0
    assert "time.sleep(60)" in error.traceback  # rank 1


def test_a_collective_that_fails_as_the_time_is_up() -> None:
    class Lost(RuntimeError):
        delay_s = 0.6  # the limit passes while rank 0 writes its report

        def __str__(self) -> str:
            time.sleep(self.delay_s)
            self.delay_s = 0
            return "Connection closed by peer"

    def loses_its_peer() -> None:
        import torch.distributed as dist

        time.sleep(0.7)
        if dist.get_rank() == 0:
            raise Lost
        time.sleep(60)

    error = failure(loses_its_peer, timeout_s=1)
    assert "hung" in error.reason
    assert "raise Lost" in error.traceback  # rank 0
    assert "time.sleep(60)" in error.traceback  # rank 1


def test_a_collective_that_a_rank_waits_for_after_the_others_returned() -> None:
    def one_too_many() -> None:
        import torch.distributed as dist

        from course_lib.launch import group

        group._PEERS_S = 0.5  # rank 1 stays that long for its peer
        if dist.get_rank() == 0:
            dist.barrier()

    start = time.monotonic()
    error = failure(one_too_many, timeout_s=60)
    assert time.monotonic() - start < 5
    assert error.rank == 0
    assert "lost its connection to rank 1, which had returned already" in error.reason
    assert "dist.barrier()" in error.traceback


def test_collectives_of_different_sizes_end() -> None:
    def mismatched() -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(10 + 1000 * dist.get_rank()))

    start = time.monotonic()
    failure(mismatched, timeout_s=3)
    assert time.monotonic() - start < 10


def test_a_result_that_cannot_be_sent() -> None:
    def generator() -> object:
        return (number for number in range(3))

    error = failure(generator, ranks=1)
    assert error.reason.startswith("returned a generator that cannot be sent to the parent")
    assert "return numbers, tensors or plain containers" in error.reason


def test_what_a_failed_rank_started_ends_with_it() -> None:
    def leave_children_behind() -> None:
        import multiprocessing

        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        multiprocessing.Process(target=time.sleep, args=(60,)).start()
        os._exit(3)

    failure(leave_children_behind)  # the fixture looks for the children


def test_a_rank_that_prints_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    def shout() -> None:
        while True:
            print("x" * 9_999)

    error = failure(shout, ranks=1)
    assert error.reason == "printed more than 16 MiB"
    shown = capsys.readouterr().out
    assert len(shown) < 20 * 2**20
    assert shown.endswith("[rank 0] (the rest is not shown: only 16 MiB are)\n")


@pytest.fixture
def no_collection() -> Iterator[None]:
    """An interrupt inside a callback of the garbage collector (hypothesis has one) gets lost."""
    gc.disable()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may come ignored
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)  # after a failure it would hit whatever comes next
    signal.signal(signal.SIGINT, before)
    gc.enable()


@needs_signals
@pytest.mark.usefixtures("no_collection")
def test_an_interrupt_ends_all_ranks() -> None:
    def sleep() -> None:
        os.kill(os.getppid(), 0)
        time.sleep(60)

    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    for delay_s in (0.01, 0.02, 0.04, 0.3):  # while ranks start, and while they run
        with pytest.raises(launch.Stopped, match=r"^Stopped; 2 ranks ended$"):
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            launch.run(sleep)
        assert our_ranks() == []


def test_run_works_after_all_that() -> None:
    assert launch.run(lambda: launch.init().rank) == [0, 1]


def test_in_a_notebook_only_the_ranks_own_frames_are_shown() -> None:
    error = failure(lambda: 1 / 0, ranks=1)
    assert error._render_traceback_() == [f"RankFailed: {error}"]
