"""What `launch.run` refuses before it starts anything."""

import threading
from pathlib import Path

import pytest

from course_lib import launch
from course_lib.launch import limits


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"function": 3}, TypeError, "function must be callable, got int 3"),
        ({"ranks": 0}, ValueError, "ranks must be between 1 and 64 on one machine, got 0"),
        ({"ranks": -1}, ValueError, "ranks must be between 1 and 64"),
        ({"ranks": 500}, ValueError, "torchrun on several machines"),
        ({"ranks": 2.0}, TypeError, "ranks must be an int, got 2.0"),
        ({"ranks": True}, TypeError, "ranks must be an int, got True"),
        ({"timeout_s": 0}, ValueError, "timeout_s must be finite and above 0, got 0"),
        ({"timeout_s": float("inf")}, ValueError, "timeout_s must be finite"),
        ({"timeout_s": float("nan")}, ValueError, "timeout_s must be finite"),
        ({"timeout_s": "10"}, TypeError, "timeout_s must be a number of seconds, got '10'"),
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
