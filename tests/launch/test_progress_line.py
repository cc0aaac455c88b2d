"""The line that says how far a launch is."""

import io
import sys
import time
from pathlib import Path

import pytest
from leftovers import BUSY_S

from course_lib import launch
from course_lib.launch import output
from course_lib.launch.output import ProgressLine, progress_text
from course_lib.notebook import Slot


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_words() -> None:
    assert progress_text([None, (0, 0)], 1.2, 120) == "1 of 2 ranks ready, 1 s of at most 120 s"
    assert progress_text([(3, 10), (2, 10)], 4, 60) == (
        "2 of 2 ranks ready, step 2 of 10, 4 s of at most 60 s"
    )
    assert "step" not in progress_text([(3, 10), (0, 0)], 4, 60)  # one has not begun


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, to be set."""
    now = [100.0]
    monkeypatch.setattr(output, "FIRST_S", 1.0)
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


def lines_into(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, chatty: bool = True
) -> ProgressLine:
    """A line on this stderr; not a fixture, since pytest sets stderr again after those."""
    monkeypatch.setattr(sys, "stderr", stream)
    return ProgressLine(60, chatty)


def test_in_a_terminal_it_changes_in_place_and_goes(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    line = lines_into(terminal, monkeypatch, chatty=False)  # it can be taken back
    line.update([(5, 10)])
    line.done(4)
    assert terminal.getvalue() == "" and not line.due  # not in the first second: nobody has seen it
    clock[0] += 1.0
    line.update([(5, 10)])
    first = "\r1 of 1 ranks ready, step 5 of 10, 1 s of at most 60 s"
    line.update([(6, 10)])
    assert terminal.getvalue() == first and not line.due  # not with every look at the ranks
    line.clear()
    line.clear()
    assert terminal.getvalue() == first + "\r" + " " * (len(first) - 1) + "\r"
    line.done(4)
    assert terminal.getvalue().endswith("\r4 ranks, 1.0 s\n")


def test_elsewhere_it_is_printed_ever_less_often_or_never(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    for chatty in (False, True):
        line = lines_into(file, monkeypatch, chatty)
        clock[0] += 2
        line.warming_up()
        line.begin()
        for _ in range(90):
            clock[0] += 0.1
            line.update([None])
        line.clear()
        seconds = [text.split(", ")[1].split()[0] for text in file.getvalue().splitlines()]
        assert seconds == (["1", "2", "4", "8"] if chatty else [])
    assert "\r" not in file.getvalue()


def test_warming_up_is_told_where_it_can_be_taken_back(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    line = lines_into(terminal, monkeypatch)
    clock[0] += 2
    line.warming_up()
    assert terminal.getvalue() == "\rstarting Python and torch, 2 s"
    line.begin()
    line.update([None])  # at once, since the reader has seen a line
    assert "0 of 1 ranks ready, 0 s of" in terminal.getvalue()


def test_in_a_notebook_one_display_changes(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr(output, "in_notebook", lambda: True)
    monkeypatch.setattr(Slot, "show", lambda slot, html, text: shown.append((html, text)))
    line = ProgressLine(60, chatty=False)
    clock[0] += 1
    line.update([(1, 3)])
    line.make_room()  # other output has its own place
    assert [text for _, text in shown] == ["1 of 1 ranks ready, step 1 of 3, 1 s of at most 60 s"]
    assert shown[0][1] in shown[0][0]
    line.clear()
    assert shown[-1] == ("", "")
    line.done(1)
    assert shown[-1][1] == "1 rank, 1.0 s"


def test_ranks_tell_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "FIRST_S", 0.0)
    seen = tmp_path / "seen"
    monkeypatch.setattr(
        ProgressLine, "update", lambda _, steps: seen.touch() if steps == [(3, 5)] * 2 else None
    )

    def train() -> None:
        launch.report_step(3, 5)
        while not seen.exists():
            time.sleep(0.01)

    launch.run(train, timeout_s=BUSY_S)
    launch.report_step(1, 2)  # outside a launch nothing happens
