"""The line that says how far a launch is."""

import io
import re
import sys
import time

import pytest

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


def into_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What stderr is from now on; not a fixture, since pytest sets stderr again after those."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_in_a_terminal_it_changes_in_place_and_goes(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = into_a_terminal(monkeypatch)
    line = ProgressLine(60, chatty=True)
    line.update([(5, 10)])
    assert terminal.getvalue() == "" and not line.due  # not in the first second
    clock[0] += 1.0
    line.update([(5, 10)])
    first = "1 of 1 ranks ready, step 5 of 10, 1 s of at most 60 s"
    assert terminal.getvalue() == "\r" + first
    line.update([(6, 10)])
    assert terminal.getvalue() == "\r" + first and not line.due  # not with every look at the ranks
    line.clear()
    line.clear()
    assert terminal.getvalue() == "\r" + first + "\r" + " " * len(first) + "\r"


def test_elsewhere_it_is_printed_ever_less_often(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    line = ProgressLine(60, chatty=True)
    for _ in range(90):
        clock[0] += 0.1
        line.update([None])
    line.clear()
    seconds = [text.split(", ")[1].split()[0] for text in file.getvalue().splitlines()]
    assert seconds == ["1", "2", "4", "8"]
    assert "\r" not in file.getvalue()


def test_it_can_be_silent(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(60, chatty=False)
    clock[0] += 5
    line.update([None])
    assert capsys.readouterr() == ("", "")


def test_a_launch_that_was_seen_says_how_long_it_took(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = into_a_terminal(monkeypatch)
    line = ProgressLine(60, chatty=False)  # in a terminal it can be taken back
    line.done(4)
    assert terminal.getvalue() == ""  # nobody has seen it
    clock[0] += 3.2
    line.update([None] * 4)
    line.clear()
    line.done(4)
    assert terminal.getvalue().endswith("\r4 ranks, 3.2 s\n")


def test_warming_up_is_told_where_it_can_be_taken_back(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    line = ProgressLine(60, chatty=True)
    clock[0] += 2
    line.warming_up()
    assert file.getvalue() == ""
    terminal = into_a_terminal(monkeypatch)
    line = ProgressLine(60, chatty=True)
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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "FIRST_S", 0.3)

    def train() -> None:
        launch.report_step(3, 5)
        print("between")
        time.sleep(0.8)

    launch.run(train)
    printed = capsys.readouterr()
    assert re.search(r"2 of 2 ranks ready, step 3 of 5, \d s of at most 120 s\n", printed.err)
    assert "ready" not in printed.out
    launch.report_step(1, 2)  # outside a launch nothing happens
