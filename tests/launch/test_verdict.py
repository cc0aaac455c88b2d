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


LATER = Failure(0, 5.1, "raised KeyError: 1")
WAITS = Failure(0, 6.0, "", "all_reduce", hung=True, computed_s=0.01)
COMPUTES = Failure(1, 6.0, "", "multiply", hung=True, computed_s=0.9)


def computed(line: str, computed_s: float) -> Failure:
    """A rank that was at this line when its second was up."""
    return Failure(0, 1.0, "", f'  File "cell.py", line 3\n{line}\n', True, True, computed_s)


@pytest.mark.parametrize(
    ("failures", "returned", "limit_s", "rank", "reason"),
    [
        # A failure of its own is the cause; of two the earlier one.
        ([LOST, RAISED], [], 9.0, 2, RAISED.reason),
        ([LOST, ABORTED, HUNG, RAISED], [], 9.0, 2, RAISED.reason),
        ([LATER, RAISED], [], 9.0, 2, RAISED.reason),
        ([LOST, ABORTED], [], 9.0, 1, "was killed by SIGABRT"),
        (
            [LOST, HUNG], [3], 9.0, 0,
            "hung: it gave no result within 9 s, nor did rank 1; rank 3 had returned already",
        ),
        (
            [WAITS, COMPUTES], [], 12.0, 1,
            "was still computing: it gave no result within 12 s, nor did rank 0. Its processor time"
            " grew by 0.9 s in the last 3 s. If no loop in it is endless, too many programs may"
            " share this machine: close some, or pass a larger timeout_s",
        ),
        ([WAITS], [], 12.0, 0, "hung: it gave no result within 12 s"),
        (
            [LOST], [1], 9.0, 0,
            "lost its connection to rank 1, which had returned already: every rank must call the"
            " same collectives, in the same order",
        ),
        # Little processor time is judged by the line; the first is the noise of its start.
        ([computed("    time.sleep(60)", 0.02)], [], 1.0, 0, "hung: "),
        ([computed("    total += matrix @ matrix", 0.02)], [], 1.0, 0, "was still computing: "),
        ([computed("    total += matrix @ matrix", 0.01)], [], 1.0, 0, "hung: "),
        ([computed("    while not sleep(0):", 0.06)], [], 1.0, 0, "was still computing: "),
    ],
)  # fmt: skip
def test_which_failure_is_the_cause(
    failures: list[Failure], returned: list[int], limit_s: float, rank: int, reason: str
) -> None:
    error = first_cause(failures, returned, limit_s)
    assert error.rank == rank
    assert error.reason == reason or (reason.endswith(": ") and error.reason.startswith(reason))


def test_at_the_time_limit_the_stacks_of_all_are_shown() -> None:
    error = first_cause([LOST, HUNG], [3], 9.0)
    assert error.traceback == "rank 0 was here:\nbarrier\nrank 1 was here:\nsleep"


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
