"""What predictions, checks and hints look like in a notebook."""

import re

import pytest

from course_lib.checking import cards, check, expect, hint, predict, progress, widgets
from course_lib.checking.predictions import Prediction


def words(html):
    """What a reader sees of a card, without its picture."""
    return " ".join(re.sub(r"<svg.*?</svg>|<[^>]+>", " ", html).split())


def the_box(monkeypatch):
    """The next box that is shown."""
    boxes = []
    monkeypatch.setattr("course_lib.checking.predictions.show_widget", boxes.append)
    return boxes


def test_a_card_escapes_what_it_shows():
    html = cards.card("a & <b>", [cards.head("✓", "<i>", "&"), cards.line("`x < 1` and `"), ""])
    assert 'aria-label="a &amp; &lt;b&gt;"' in html and "<i>" not in html
    assert cards.with_code("`x < 1` is") == "<code>x &lt; 1</code> is"
    assert "<code>" not in cards.with_code("a lone ` quote")


def test_a_question_has_a_box_whose_number_reaches_expect(in_a_notebook, monkeypatch):
    boxes = the_box(monkeypatch)
    prediction = predict("k", "How many <b>?", yours=None, unit="GB")
    asked, (box,) = in_a_notebook[0], boxes
    assert "How many &lt;b&gt;?" in asked[1] and box.unit == "GB"
    expect(100, 103, within=0.05, yours=prediction)
    folded = in_a_notebook[1]
    assert "<details" in folded[1] and "<svg" in folded[1].partition("<details")[2]
    assert "100" not in words(folded[1].partition("<details")[0])

    box.submit("43 GB")
    assert box.committed and progress.read()["predictions"]["k"]["yours"] == 43
    committed, compared = in_a_notebook[2:]
    assert committed[0] is asked[0] and "43 GB" in words(committed[1])
    assert compared[0] is folded[0] and "<details" not in compared[1]
    assert "3 % Close: measured 3 % above theory" in words(compared[1])
    assert "You predicted 43 GB: 2.4 × too low." in words(compared[1])
    assert progress.read()["predictions"]["k"]["found"] == 103
    box.submit("44")
    assert progress.read()["predictions"]["k"]["yours"] == 43

    expect(100, 103, within=0.05, yours=prediction)  # the cell run again, or after a restart
    assert "<details" not in in_a_notebook[-1][1]
    again = predict("k", "How many <b>?", yours=None, unit="GB")
    assert again == Prediction("k", 43, "GB") and len(boxes) == 1


def test_the_picture_says_what_it_shows(in_a_notebook):
    expect(100, 103, within=0.05, yours=predict("k", "?", yours=43))
    svg = re.search(r'aria-label="(you[^"]*)"', in_a_notebook[-1][1])
    assert svg[1] == "you: 43; theory: 100; measured: 103; on a linear scale."


def test_a_change_and_theory_alone_have_their_sentences(in_a_notebook):
    predict("k", "?", yours=43, unit="ms")
    guess = predict("k", "?", yours=44, unit="ms")
    assert "Your change to 44 ms is kept, but the first number counts." in words(
        in_a_notebook[1][1]
    )
    expect(43, yours=guess)
    assert "43 ms according to theory You predicted 43 ms: right." in words(in_a_notebook[2][1])
    expect(0, yours=guess)
    assert "You predicted 43 ms: off by 43 ms." in words(in_a_notebook[3][1])


def test_without_a_question_nothing_is_folded_and_a_failure_is_shown_as_well(in_a_notebook):
    expect(5, 5, label="sum")
    assert words(in_a_notebook[0][1]) == "sum no gap Exact: the measurement is what theory says."
    with pytest.raises(AssertionError, match="a gap of \\+20 %"):
        expect(5, 6, within=0.1)
    assert "Too far: measured 20 % above theory (up to 10 % allowed)." in words(in_a_notebook[1][1])


@pytest.mark.parametrize("text", ["", "  ", "two", "12 GB of it", "nan", "12 MB", "41,7"])
def test_the_box_refuses_what_is_no_number(text):
    box = widgets.PredictionBox("GB", lambda number: pytest.fail(f"committed {number}"))
    box._handle_custom_msg({"text": text}, [])
    remedy = "write a decimal point" if "," in text else "write one number"
    assert box.said.startswith("Got ") and remedy in box.said and not box.committed
    box.close()


@pytest.mark.parametrize(
    ("text", "number"), [("1,024", 1024), ("3e9", 3e9), (" 12 GB ", 12), ("−2", -2), (".5GB", 0.5)]
)
def test_the_box_takes_numbers_as_people_write_them(text, number):
    committed = []
    box = widgets.PredictionBox("GB", committed.append)
    box.submit(text)
    assert committed == [number]
    box.close()


@pytest.mark.usefixtures("chapter")
class TestVerdicts:
    """The cards of chapter 90's two exercises."""

    def test_to_do(self, in_a_notebook):
        check("90.1")
        ((_, html, text),) = in_a_notebook
        assert words(html) == (
            "○ To do 90.1 count updates Replace each ... with your answer and run the cell."
        )
        assert text == "[todo] 90.1 count updates: not answered yet"

    def test_wrong_says_how_and_not_what_is_right(self, in_a_notebook):
        check("90.1", 250)
        check("90.1", "x")
        first, second = (words(html) for _, html, _ in in_a_notebook)
        assert first == (
            "✗ Not right yet 90.1 count updates You gave 250 updates. Too large: exactly a factor "
            "of 2. hint(&quot;90.1&quot;) tells more."
        )
        assert "The check wants a number in updates. It got str &#x27;x&#x27;." in second
        assert "2 tries so far. hint(" in second
        for _, html, text in in_a_notebook:
            assert "125" not in html + text and "500" not in html + text

    def test_when_there_is_no_hint_left_the_solution_is_named(self, in_a_notebook):
        check("90.1", 250)
        for _ in range(3):
            hint("90.1")
            assert "solution(" not in in_a_notebook[-2][1]
            check("90.1", 250)
        assert "Hint 3 of 3 for 90.1" in in_a_notebook[-2][1]  # the third is the reason
        assert "500 samples / 4 per batch." in in_a_notebook[-2][1]
        assert "solution(" in in_a_notebook[-1][1] and "hint(" not in in_a_notebook[-1][1]
        assert "solution(" in in_a_notebook[-1][2]

    def test_right_says_why_and_what_is_next(self, in_a_notebook):
        check("90.1", 125)
        ((_, html, text),) = in_a_notebook
        assert words(html) == (
            "✓ Right 90.1 count updates Why: 500 samples / 4 per batch. "
            "1 of 2 done in this chapter, next: 90.2 count steps"
        )
        assert text == "[pass] 90.1 count updates"

    def test_the_last_one_ends_the_chapter(self, in_a_notebook):
        check("90.1", 125)

        def steps(samples, batch):
            if batch < 1:
                raise ValueError("batch must be at least 1")
            return -(-samples // batch)

        check("90.2", steps)
        assert "All 2 exercises of chapter 90 are done." in words(in_a_notebook[-1][1])
        assert "Why: a step takes one batch." in words(in_a_notebook[-1][1])

    def test_a_hint_is_a_card(self, in_a_notebook):
        hint("90.2")
        assert words(in_a_notebook[0][1]).startswith("→ Hint 1 of 1 for 90.2 Round up. That was")

    def test_in_the_solutions_nothing_is_counted(self, in_a_notebook, monkeypatch):
        monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/solutions/90_x.ipynb")
        check("90.1", 125)
        assert "done in this chapter" not in in_a_notebook[0][1]
        assert progress.read()["exercises"] == {}
