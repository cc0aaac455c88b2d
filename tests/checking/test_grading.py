import json

import pytest

from course_lib.checking import (
    CheckFailed,
    Exercise,
    check,
    grade,
    grading,
    hint,
    own_work,
    progress,
)


def right_steps(samples, batch):
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return -(-samples // batch)


pytestmark = pytest.mark.usefixtures("chapter")


def test_the_three_lines(capsys):
    check("90.1")
    check("90.1", 250)
    check("90.1", 125)
    assert capsys.readouterr().out.splitlines() == [
        "[todo] 90.1 count updates: not answered yet",
        "[fail] 90.1 count updates: gave 250 updates, expected another answer: too large: exactly "
        "a factor of 2",
        '       hint("90.1") tells more.',
        "[pass] 90.1 count updates",
    ]


def _of(body):
    """A function of two arguments with this body, as a learner writes it in a cell."""
    names = {"json": json}
    exec(f"def steps(samples, batch):\n    {body}", names)
    return names["steps"]


def dividing(samples, batch):
    return samples // 0


def in_a_library(samples, batch):
    return json.loads("{")


WANTS = "[fail] 90.2 count steps: wants a function steps(samples, batch), got"
VERDICTS = [
    *(("90.1", answer, "todo", "") for answer in (..., None, [..., 3], (3, ...), {"a": ...})),
    *(("90.2", _of(body), "todo", "") for body in ("...", "return ...", "return None")),
    ("1.6", ([32, 8, 1], [31, 7, 3]), "fail", "for 'dropped' it gave [31, 7, 3]"),
    ("90.2", right_steps, "pass", ""),
    ("90.2", _of("return samples // batch"), "fail", "(11, 5) gave 2, expected another answer: to"),
    ("90.2", _of("return 2 if samples == 10 else None"), "fail", "gave None, expected another ans"),
    ("90.2", 5, "fail", f"{WANTS} int 5"),
    ("90.2", "x", "fail", f"{WANTS} str 'x'"),
    ("90.2", lambda samples: 1, "fail", "<lambda>(10, 5) raised TypeError: "),
    ("90.2", len, "fail", f"{WANTS} the function len; len(10, 5) raised TypeError: "),
    ("90.2", json.loads, "fail", "loads(10, 5) raised TypeError: "),
    (
        "90.2",
        dividing,
        "fail",
        f"line {dividing.__code__.co_firstlineno + 1} of your code, `return samples // 0`, raised",
    ),
    ("90.2", in_a_library, "fail", "of your code, `return json.loads"),
]


@pytest.mark.parametrize(("key", "answer", "status", "words"), VERDICTS)
def test_each_answer_has_its_verdict(key, answer, status, words):
    verdict = grade(key, answer)
    assert verdict.status == status and words in verdict.line
    assert "\n" not in verdict.line and "Traceback" not in verdict.line


def test_a_wrong_case_has_its_own_reason():
    assert grade("90.2", _of("return samples // batch")).because == "the ragged batch is a step"


def test_a_check_that_breaks_is_a_sentence_too(monkeypatch):
    """No answer should get here; if one does, the learner reads no traceback."""
    broken = Exercise("90.2", "debug", "broken", ("a hint",), lambda answer: answer[3])
    monkeypatch.setattr(grading, "find", lambda _: broken)
    wants = "wants another kind of answer: checking it raised"
    # The lambda above is no part of the library, so its line is taken for the learner's.
    assert "raised IndexError: list index out of range" in grade("90.2", []).line
    monkeypatch.setattr(own_work, "is_learners", lambda filename: False)
    assert f"{wants} IndexError: list index out of range" in grade("90.2", []).line


def test_a_very_long_answer_stays_one_short_line():
    line = grade("90.2", lambda samples, batch: "long\n" * 10_000).line
    assert "\n" not in line and len(line) <= 500


def test_an_unknown_id_prints_the_nearest(capsys):
    check("90.11", 1)
    hint("90.11")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("no exercise '90.11': did you mean '90." in line for line in lines)


def test_strict_mode_raises_after_the_line(monkeypatch, capsys):
    monkeypatch.setenv("COURSE_STRICT", "1")
    for answer in (..., 250):
        with pytest.raises(CheckFailed, match=r"90\.1"):
            check("90.1", answer)
        assert "90.1 count updates" in capsys.readouterr().out, answer
    check("90.1", 125)
    with pytest.raises(CheckFailed, match="no exercise"):
        check("90.9", 125)


def test_hints_come_one_after_the_other_and_are_counted(capsys):
    last = 'That was the last one; solution("90.1") shows an answer.'
    for _ in range(3):
        hint("90.1")
    assert capsys.readouterr().out.splitlines() == [
        "Hint 1 of 2 for 90.1: Divide.",
        "Hint 2 of 2 for 90.1: 500 / 4.",
        last,
        "Hint 1 of 2 for 90.1: Divide.",
    ]
    assert progress.read()["exercises"]["90.1"]["hints"] == 2


def test_progress_keeps_the_best_status_and_counts_attempts(monkeypatch):
    moments = iter(f"moment {number}" for number in range(9))
    monkeypatch.setattr(progress, "now", lambda: next(moments))
    check("90.1")
    assert "90.1" not in progress.read()["exercises"]
    check("90.1", 250)
    assert progress.read()["exercises"]["90.1"]["status"] == "fail"
    check("90.1", 125)
    check("90.1", 125)
    check("90.1", 250)
    record = progress.read()["exercises"]["90.1"]
    assert record == {"status": "pass", "attempts": 4, "first_pass": "moment 0"}


def test_grade_records_nothing(home):
    grade("90.1", 125)
    assert not home.exists()
