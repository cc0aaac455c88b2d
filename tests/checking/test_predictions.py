"""Predictions, how far they are off, and how gaps are told."""

import ast
import math
import re
import time
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_lib.chapters import files
from course_lib.checking import Prediction, expect, predict, progress
from course_lib.checking.gaps import Compared, gap_of, how_far, in_words, judged, percent
from course_lib.checking.report import predictions_lines


def test_without_an_answer_nothing_is_committed_and_nothing_blocks(capsys):
    for yours in (None, ...):
        prediction = predict("k", "How much?", yours=yours, unit="GB")
        assert prediction == Prediction("k", None, "GB")
        out = capsys.readouterr().out
        assert "How much?" in out and "Write your number of GB for None" in out
        assert progress.read()["predictions"] == {}
    expect(16, 16, yours=prediction)
    words = " ".join(capsys.readouterr().out.split())
    assert words == "k you theory measured – 16 GB 16 GB gap 0 %"
    assert progress.read()["predictions"] == {}


def test_the_first_number_stays_and_later_ones_are_revised(capsys):
    assert predict("k", "?", yours=12, unit="GB").yours == 12
    assert predict("k", "?", yours=14, unit="GB").yours == 12
    assert predict("k", "?", yours=14, unit="GB").yours == 12
    record = progress.read()["predictions"]["k"]
    assert record["yours"] == 12 and record["unit"] == "GB" and record["at"].startswith("20")
    assert [revision["yours"] for revision in record["revised"]] == [14]
    assert "change to 14 GB is recorded as revised" in capsys.readouterr().out


NO_NUMBER = "write only the number, no unit"
REFUSED = [
    (lambda: predict("k", "?", yours="12 GB"), ValueError, f"yours must be .*: {NO_NUMBER}"),
    (lambda: predict("k", "?", yours=True), ValueError, "yours must be .*: give an int or a float"),
    (lambda: predict("k", "?", yours=[12]), ValueError, "yours must be .*: give an int or a float"),
    (lambda: predict("k", "?", yours=math.inf), ValueError, "yours must be .*: give an ordinary"),
    (lambda: expect(math.nan, 3), ValueError, "theory must be .* got nan"),
    (lambda: expect(None, 3), ValueError, "theory must be .* got None"),
    (lambda: expect(..., label="nothing at all"), ValueError, "theory must be a"),
    (lambda: expect(3, 3, within=-0.1), ValueError, "within must be .* got -0.1"),
    (lambda: expect(3, 3, within="5 %"), ValueError, "within must be .* got '5 %'"),
    (lambda: expect(3, math.nan, within=100), AssertionError, "measured must be a finite .* nan"),
    (lambda: expect(3, True, within=100), AssertionError, "measured must be a finite .* got True"),
    (lambda: expect(3, math.nan, within=None), AssertionError, "must be a finite number"),
    (lambda: expect(100, 105.01, within=0.05), AssertionError, "at most 5 % is allowed"),
    (lambda: expect(100, 94.99, within=0.05), AssertionError, "at most 5 % is allowed"),
    (lambda: expect(100, -100, within=0.05), AssertionError, "at most 5 % is allowed"),
    (lambda: expect(2**60, 2**60 + 1), AssertionError, "where at most 0 % is allowed"),
    (lambda: expect(0, 1, within=0.5), AssertionError, r"a gap of \+inf %"),
    (lambda: expect(4, torch.tensor(5.0)), AssertionError, "measured 5 against predicted 4"),
    (
        lambda: expect(100, 50, within=0.01, yours=Prediction("k", 50)),
        AssertionError,
        "k: measured 50",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_what_is_no_number_or_too_far_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_what_is_near_enough_holds(capsys):
    for theory, measured, within in (
        (100, 105, 0.05),
        (100, 95, 0.05),
        (-100, -105, 0.05),
        (2**60, 2**60, 0),
        (0, 0, 0),
        (1, 0, 1),
        (4, torch.tensor(4.0), 0),
        (0.135, 9.0, None),  # a time is shown and not judged
    ):
        expect(theory, measured, within=within)
    assert "gap +6,567 %" in capsys.readouterr().out
    expect(100, 100, within=0.01, yours=Prediction("k", 50, "MB"))  # a guess never raises
    assert "2 × too low" in capsys.readouterr().out


def test_every_kind_of_number_can_be_predicted():
    for number, value in enumerate((3, 3.0, 3e24, np.int64(3), np.float32(3), Fraction(3))):
        assert predict(f"k{number}", "?", yours=value).yours == value


def test_the_time_of_a_prediction_is_that_of_the_learners_clock(capsys, monkeypatch):
    monkeypatch.setattr(progress, "now", lambda: "2026-11-24T23:30:00+00:00")
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        predict("k", "?", yours=43)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert "committed 2026-11-25 07:30" in capsys.readouterr().out
    assert progress.local("edited by hand") == "edited by hand"


def test_expect_prints_three_columns_and_how_far_each_is_off(capsys):
    expect(100, 103, within=0.05, label="states", yours=predict("k", "?", yours=43, unit="MB"))
    words = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert words == [
        ["states"],
        ["you", "theory", "measured"],
        ["43", "MB", "100", "MB", "103", "MB"],
        ["2.4", "×", "too", "low", "gap", "+3", "%"],
    ]


def test_numbers_that_are_far_apart_need_no_six_digits():
    far = Compared("idle", "%", 2, {"theory": 15.789474, "measured": 23.39931})
    near = Compared("idle", "%", 2, {"theory": 15.789474, "measured": 15.790001})
    whole = Compared("sent", "B", 2, {"theory": 1_234_567, "measured": 2_345_678})
    for compared, words in (
        (far, ("15.79 %", "23.4 %")),
        (near, ("15.7895 %", "15.79 %")),
        (whole, ("1,234,567 B", "2,345,678 B")),
    ):
        for word in words:
            assert word in compared.text(None) and word in compared.card(None, False)


@pytest.mark.parametrize(
    ("guess", "found", "words"),
    [
        (100, 100, "right"),
        (100.9, 100, "right"),
        (50, 100, "2 × too low"),
        (300, 100, "3 × too high"),
        (-2, -8, "4 × too low"),
        (0, 5, "off by 5"),
        (5, 0, "off by 5"),
        (-1, 1, "off by 2"),
        (5e6, 2, "2,500,000 × too high"),
    ],
)
def test_how_far_a_guess_is_off(guess, found, words):
    assert how_far(guess, found) == words


def test_a_measurement_without_a_theory_has_the_last_word(capsys):
    guess = predict("5.mfu", "Your MFU in %?", yours=30)
    expect(100, 35.0, within=1, label="your MFU", yours=guess)  # an earlier run, with a theory
    capsys.readouterr()
    expect(..., 35.0, label="your MFU", unit="%", yours=guess)
    printed = capsys.readouterr().out
    assert "1.17 × too low" in printed and "gap" not in printed and "theory" not in printed
    expect(7, yours=predict("theory", "?", yours=8))  # and a theory without a measurement
    assert progress.read()["predictions"]["theory"]["found"] == 7
    kept = progress.read()["predictions"]["5.mfu"]
    assert kept["found"] == kept["measured"] == 35 and "theory" not in kept


def test_progress_draws_where_intuition_is_off(capsys):
    for key, yours, found in (("7.b", 10, 1), ("7.a", 1, 1), ("10.c", 1, 100), ("2.d", -1, 1)):
        expect(found, yours=predict(key, "?", yours=yours))
    lines = predictions_lines(progress.read()["predictions"])
    assert lines[0].startswith("4 predictions committed, 4 of them compared")
    marks = {line.split()[0]: line[22:].find("●") for line in lines[2:]}
    assert list(marks) == ["2.d", "7.a", "7.b", "10.c"]
    assert marks == {"2.d": -1, "7.a": 20, "7.b": 30, "10.c": 0}


CHAPTERS = sorted(files("[0-9]*.py").values(), key=lambda path: path.name)


def calls_of(name, code):
    """All calls of a function of this name in a text of Python, without lines for IPython."""
    tree = ast.parse(re.sub("(?m)^%.*", "", code))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in found if ast.unparse(call.func) == name]


def test_every_comparison_in_the_chapters_has_a_name():
    """Without one its card would be headed by the prediction's key."""
    calls = [
        (chapter.name, call)
        for chapter in CHAPTERS
        for call in calls_of("expect", chapter.read_text("utf-8"))
    ]
    assert len(calls) > 200
    unnamed = [
        f"{name}:{call.lineno}"
        for name, call in calls
        if len(call.args) < 5 and "label" not in {word.arg for word in call.keywords}
    ]
    assert unnamed == []


def gives_away(cell):
    """Whether a cell that folds an answer until there is a guess prints or draws something, too."""
    folds = any(word.arg == "yours" for call in calls_of("expect", cell) for word in call.keywords)
    last = ast.parse(cell).body[-1:] if folds else []
    shown = [each.value for each in last if isinstance(each, ast.Expr)]
    quiet = calls_of("expect", cell) + calls_of("check", cell)
    return folds and bool(
        calls_of("print", cell) or {*map(ast.dump, shown)} - {*map(ast.dump, quiet)}
    )


def test_no_cell_shows_beside_a_folded_answer_what_it_is():
    assert gives_away("expect(1, found, yours=guess)\nprint(found)")
    assert gives_away("expect(1, found, yours=guess)\nfigures.bars(found)")
    cells = [
        (chapter.name, cell.partition("\n")[2])
        for chapter in CHAPTERS
        for cell in re.split("(?m)^# %%", chapter.read_text("utf-8"))
    ]
    assert [(name, cell) for name, cell in cells if gives_away(cell)] == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1024, "1,024 B"),
        (0, "0 B"),
        (2.5, "2.5 B"),
        (-0.125, "-0.125 B"),
        (1234567.5, "1,234,568 B"),
        (999999.5, "1,000,000 B"),
        (3.14e24, "3.14 × 10²⁴ B"),
        (1e21, "10²¹ B"),
        (1.25e-6, "1.25 × 10⁻⁶ B"),
        (10**15 - 1, "999,999,999,999,999 B"),
    ],
)
def test_a_number_is_written_without_an_e(value, words):
    assert in_words(value, "B") == words


def test_a_gap_is_signed_and_never_lost_in_rounding():
    assert [percent(gap) for gap in (0, 0.031, -0.5, 1e-12, math.inf)] == [
        "0 %",
        "+3.1 %",
        "-50 %",
        "under 0.001 %",
        "+inf %",
    ]
    assert percent(gap_of(2, 25_000)) == "+1,249,900 %"


def test_a_gap_is_judged_by_what_was_allowed():
    assert judged(0, 0) == ("no gap", "Exact: the measurement is what theory says.")
    assert judged(1e-12, 1e-9)[0] == "no gap" and "less than 0.001 %" in judged(1e-12, 1e-9)[1]
    assert judged(0.031, 0.05) == (
        "3.1 %",
        "Close: measured 3.1 % above theory (up to 5 % allowed).",
    )
    assert judged(-0.2, 0.05)[1].startswith("Too far: measured 20 % below theory")
    assert judged(math.inf, 0.5)[0] == "∞ %"
    assert judged(0.2, None) == (
        "20 %",
        "Measured 20 % above theory. The gap is shown, not judged.",
    )
