import pytest

from course_lib.checking import Question, progress, quiz
from course_lib.checking.exercises import chapters
from course_lib.checking.grading import questions_of

ONE = Question("One?", ("yes", "no"), 1, "it is no")


def test_a_malformed_question_is_refused():
    good = {"text": "One?", "choices": ("yes", "no"), "answer": 1, "why": "it is no"}
    assert Question(**good) == ONE
    for name, *values in (
        ("choices", ("only",), ("same", "same"), "text"),
        ("answer", 2, -1, True),
        ("why", ""),
    ):
        for value in values:
            with pytest.raises(ValueError, match=f"{name} must"):
                Question(**good | {name: value})


def test_every_question_of_the_course_can_be_asked():
    for number in chapters():
        assert len({question.text for question in questions_of(number)}) >= 5, number


def test_a_question_without_one_right_choice_is_refused(chapter_folder):
    text = chapter_folder / "ch90_made" / "90_made.py"
    good = text.read_text(encoding="utf-8")
    for choices in ("[ ] c", "[x] neither\n# [x] c"):
        text.write_text(good.replace("[x] c", choices), encoding="utf-8")
        with pytest.raises(ValueError, match="right choices: mark one"):
            questions_of(90)


def test_an_unknown_quiz_gets_a_sentence():
    for chapter in ("x", "", "77", 1.5, None):
        with pytest.raises(ValueError, match=f"chapter '?{chapter}'? (is not|has no)"):
            questions_of(chapter)


@pytest.fixture
def shown(chapter):
    widget = quiz("90")
    yield widget
    widget.close()


def press(widget, *answers):
    """What the browser sends when Check is pressed."""
    widget._handle_custom_msg({"answers": list(answers)}, [])


def test_pressing_check_tells_and_records(shown):
    press(shown, 1, 2)
    assert shown.feedback == [
        {"state": "right", "text": "✓ Right. c is right"},
        {"state": "wrong", "text": "✗ No: yes. yes it is"},
    ]
    assert shown.result == "1 of 2 right" and shown.checks == 1
    press(shown, 1, 0)
    press(shown, 1, 1)
    record = progress.read()["quizzes"]["90"]
    assert (record["right"], record["of"], record["best"]) == (1, 2, 2)


def test_an_incomplete_quiz_says_so_and_is_not_recorded(shown):
    press(shown, -1, 0)
    assert shown.result == "1 of 2 right, 1 not answered yet"
    assert shown.feedback[0] == {"state": "open", "text": "○ Not answered yet."}
    assert progress.read()["quizzes"] == {}


def test_the_right_answers_stay_in_the_kernel_until_they_are_asked_for(shown):
    sent = str(shown.get_state())
    assert "Which <one>?" in sent and "a & b" in sent
    for question in shown.questions:
        assert question.why not in sent
    assert shown.get_state()["feedback"] == []


def test_without_a_kernel_the_questions_can_be_read(shown):
    bundle, _ = shown._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "1. Which <one>?\n   a) a & b\n   b) c" in bundle["text/plain"]
    assert (
        "Which &lt;one&gt;?" in bundle["text/html"] and "<li>a &amp; b</li>" in bundle["text/html"]
    )
