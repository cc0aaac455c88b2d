"""Which of several failures is named as the cause."""

import threading
from pathlib import Path

import pytest

from course_lib import launch
from course_lib.launch import limits
from course_lib.launch.rank import NO_REPORT
from course_lib.launch.running import Failure, describe_exit, first_cause

RAISED = Failure(2, 5.0, "raised ValueError: no", "its traceback")
LOST = Failure(0, 4.0, "raised RuntimeError: [pair.cc:553] Connection closed by peer", "barrier")
ABORTED = Failure(1, 3.0, "was killed by SIGABRT", aborted=True)
HUNG = Failure(1, 6.0, "", "sleep", hung=True)


@pytest.mark.parametrize("others", [[LOST], [ABORTED], [HUNG], [LOST, ABORTED, HUNG]])
def test_a_failure_of_its_own_is_the_cause(others: list[Failure]) -> None:
    error = first_cause([*others, RAISED], [], 9.0)
    assert (error.rank, error.reason, error.traceback) == (2, RAISED.reason, "its traceback")


def test_of_two_failures_the_earlier_is_the_cause() -> None:
    later = Failure(0, 5.1, "raised KeyError: 1")
    assert first_cause([later, RAISED], [], 9.0).rank == 2


def test_at_the_time_limit_a_rank_that_just_lost_its_peer_is_shown_with_it() -> None:
    error = first_cause([LOST, HUNG], [3], 9.0)
    assert error.rank == 0
    assert error.reason == (
        "hung: it gave no result within 9 s, nor did rank 1; rank 3 had returned already"
    )
    assert error.traceback == "rank 0 was here:\nbarrier\nrank 1 was here:\nsleep"


def test_at_the_time_limit_a_rank_that_still_computed_is_named_first() -> None:
    waits = Failure(0, 6.0, "", "all_reduce", hung=True, computed_s=0.01)
    computes = Failure(1, 6.0, "", "multiply", hung=True, computed_s=0.9)
    error = first_cause([waits, computes], [], 12.0)
    assert (error.rank, error.traceback[:14]) == (1, "rank 0 was her")
    assert error.reason == (
        "was still computing: it gave no result within 12 s, nor did rank 0. Its processor time"
        " grew by 0.9 s in the last 3 s. If no loop in it is endless, too many programs may share"
        " this machine: close some, or pass a larger timeout_s"
    )
    assert first_cause([waits], [], 12.0).reason == "hung: it gave no result within 12 s"


@pytest.mark.parametrize(
    ("line", "computed_s", "verdict"),
    [
        ("    time.sleep(60)", 0.02, "hung"),  # the noise of its start
        ("    total += matrix @ matrix", 0.02, "was still computing"),
        ("    total += matrix @ matrix", 0.01, "hung"),
        ("    while not sleep(0):", 0.06, "was still computing"),
    ],
)
def test_little_processor_time_is_judged_by_the_line(line: str, computed_s: float, verdict: str):
    one = Failure(0, 1.0, "", f'  File "cell.py", line 3\n{line}\n', True, True, computed_s)
    assert first_cause([one], [], 1.0).reason.startswith(f"{verdict}: ")


def test_a_peer_that_had_returned_is_named() -> None:
    assert "lost its connection to rank 1, which had" in first_cause([LOST], [1], 9.0).reason


def test_exit_codes_in_words() -> None:
    assert describe_exit(3, started=True) == "ended with exit code 3 before it returned a result"
    assert describe_exit(1, started=False) == "ended with exit code 1 before it started"
    assert "is the disk of the temporary folder full?" in describe_exit(NO_REPORT, started=True)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"function": 3}, TypeError, "function must be callable, got int 3"),
        ({"ranks": 0}, ValueError, "ranks must be at least 1, got 0"),
        ({"ranks": 500}, ValueError, "ranks must be at most 64, got 500"),
        ({"timeout_s": 0}, ValueError, "timeout_s must be above 0, got 0"),
    ],
)
def test_bad_arguments(arguments: dict, error: type[Exception], sentence: str) -> None:
    given = {"function": print, **arguments}
    with pytest.raises(error, match=r"^[^\n]+$") as caught:  # one line
        launch.run(given.pop("function"), **given)
    assert sentence in str(caught.value)


def test_an_argument_that_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match=r"cannot be sent to the ranks .*create inside"):
        launch.run(print, threading.Lock())


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_memory_bytes", lambda: 500 * 10**6)
    assert launch.run(lambda: None, ranks=2) == [None, None]
    with pytest.raises(MemoryError, match=r"ranks=4 needs about 0.7 GB .* 0.5 GB is free: close"):
        launch.run(lambda: None, ranks=4)


def test_memory_of_machine_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(limits, "_CGROUP", tmp_path)
    assert limits.available_memory_bytes() is None  # neither is known, as on macOS
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert limits.available_memory_bytes() == 8000 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 2000\ninactive_file 500\n")
    assert limits.available_memory_bytes() == 5000 - 3000 + 500
    (tmp_path / "memory.max").write_text("max\n")
    assert limits.available_memory_bytes() == 8000 * 1024
