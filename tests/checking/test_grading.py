import pytest

from course_lib.checking import CheckFailed, check, grade, hint, progress


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
        "[todo] 90.1 Count updates: not answered yet",
        "[fail] 90.1 Count updates: gave 250 updates, expected 125 updates "
        "because 500 samples / 4 per batch",
        '       hint("90.1") tells more.',
        "[pass] 90.1 Count updates",
    ]


@pytest.mark.parametrize("answer", [..., None, [..., 3], (3, ...), {"a": ...}])
def test_what_is_not_answered_is_todo(answer):
    assert grade("90.1", answer).status == "todo"


@pytest.mark.parametrize("body", ["...", "return ...", "return None"])
def test_a_function_without_a_result_is_todo(body):
    names = {}
    exec(f"def steps(samples, batch):\n    {body}", names)
    assert grade("90.2", names["steps"]).status == "todo"


def test_a_right_function_passes():
    assert grade("90.2", right_steps).status == "pass"


def test_a_wrong_case_names_the_call_and_its_own_reason():
    verdict = grade("90.2", lambda samples, batch: samples // batch)
    assert verdict.status == "fail"
    assert "(11, 5) gave 2, expected 3 because the ragged batch is a step" in verdict.line


def test_a_function_that_later_gives_none_fails():
    verdict = grade("90.2", lambda samples, batch: 2 if samples == 10 else None)
    assert verdict.status == "fail"
    assert "gave None, expected 3" in verdict.line


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (5, "[fail] 90.2 Count steps: wants a function steps(samples, batch), got int 5"),
        ("x", "[fail] 90.2 Count steps: wants a function steps(samples, batch), got str 'x'"),
    ],
)
def test_a_wrong_type_says_which_type_is_wanted(answer, line):
    assert grade("90.2", answer).line == line


def test_an_exception_of_the_learner_names_their_line_and_no_traceback():
    def steps(samples, batch):
        return samples // 0  # the learner's slip

    verdict = grade("90.2", steps)
    number = steps.__code__.co_firstlineno + 1
    assert verdict.status == "fail"
    assert f"line {number} of your code" in verdict.line
    assert "return samples // 0" in verdict.line
    assert "ZeroDivisionError" in verdict.line
    assert "\n" not in verdict.line and "Traceback" not in verdict.line


def test_an_exception_below_the_learner_in_a_library_names_the_learners_line():
    def steps(samples, batch):
        import json

        return json.loads("{")

    assert "of your code, `return json.loads" in grade("90.2", steps).line


def test_a_call_with_the_wrong_number_of_arguments_fails_with_a_sentence():
    line = grade("90.2", lambda samples: 1).line
    assert line.startswith("[fail]") and "positional argument" in line


def test_a_very_long_answer_stays_one_short_line():
    line = grade("90.2", lambda samples, batch: "long\n" * 10_000).line
    assert "\n" not in line and len(line) <= 500


def test_an_unknown_id_prints_the_nearest(capsys):
    check("90.11", 1)
    hint("90.11")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("no exercise '90.11': did you mean '90." in line for line in lines)


@pytest.mark.parametrize("answer", [..., 250])
def test_strict_mode_raises_after_the_line(answer, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_STRICT", "1")
    with pytest.raises(CheckFailed, match=r"90\.1"):
        check("90.1", answer)
    assert "90.1 Count updates" in capsys.readouterr().out
    check("90.1", 125)
    with pytest.raises(CheckFailed, match="no exercise"):
        check("90.9", 125)


def test_hints_come_one_after_the_other_and_are_counted(capsys):
    for _ in range(3):
        hint("90.1")
    assert capsys.readouterr().out.splitlines() == [
        "Hint 1 of 2 for 90.1: Divide.",
        "Hint 2 of 2 for 90.1: 500 / 4.",
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


def test_running_the_solutions_is_not_the_learners_work(monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/solutions/90_x.ipynb")
    check("90.1", 125)
    assert progress.read()["exercises"] == {}
