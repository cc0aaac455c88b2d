"""Cards, the box for predictions and the quiz in JupyterLab: by keyboard alone, in both themes."""

import pytest
import real_lab
from accessibility import faults_in_both_themes

from course_lib.lab.chromium import browser_path

pytestmark = [
    pytest.mark.timeout(1200),  # beside much else
    pytest.mark.skipif(not browser_path(), reason="needs chromium"),
]
CELLS = (
    "from course_lib import check, expect, launch, predict, quiz",
    'guess = predict("1.k", "How many micro-steps?", yours=None)',
    'expect(125, 125, label="micro-steps", yours=guess)',
    'check("1.1", [976, 950])',
    'check("1.1", ...)',
    'check("1.1", [961, 974])',
    "quiz(1)",
    "import time\nlaunch.run(time.sleep, 1.5, stream=False)",
)
GROUPS, RIGHT = 5, (1, 2)  # questions, and the right choices of the first two


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    home = tmp_path_factory.mktemp("lab")
    root = home / "root"
    root.mkdir()
    (root / "cards.ipynb").write_text(real_lab.notebook(*CELLS))
    with (
        pytest.MonkeyPatch.context() as learners,
        real_lab.chromium() as browser,
    ):
        learners.delenv("COURSE_STRICT", raising=False)  # a wrong answer does not stop a learner
        with real_lab.running_lab(root, home) as lab:
            yield opened(lab, browser)


def opened(lab, browser):
    """The notebook, run to its end; `page.faults` are the errors that the page reports."""
    page = lab.new_page(browser)
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    lab.open(page, "cards.ipynb")
    real_lab.run_all(page)
    return page


def output(page, call):
    """What stands below the cell with this call."""
    place = next(n for n, cell in enumerate(CELLS) if call in cell) + 1  # the first imports panels
    return page.locator(".jp-Notebook .jp-Cell").nth(place).locator(".jp-OutputArea")


def focused(page, found):
    return found.evaluate("one => one === document.activeElement")


def test_a_prediction_is_written_and_unfolds_what_came(page):
    compared = output(page, "expect(125")
    assert compared.locator("svg[role=img]").is_hidden()
    assert "You have not predicted this yet" in compared.inner_text()
    box = output(page, "predict(").get_by_role("textbox", name="Your number")
    box.focus()
    page.keyboard.type("many")
    page.keyboard.press("Enter")
    said = output(page, "predict(").locator(".course-prediction").get_by_role("status")
    real_lab.wait_until(lambda: "write one number" in said.inner_text())
    assert focused(page, box)
    page.keyboard.press("Control+A")
    page.keyboard.type("50")
    page.keyboard.press("Enter")
    compared.locator("svg[role=img]").wait_for()
    assert "You predicted 50: 2.5 × too low." in compared.inner_text()
    assert "no gap" in compared.inner_text()
    assert "Predicted How many micro-steps?" in output(page, "predict(").inner_text()
    real_lab.wait_until(lambda: said.evaluate("one => one === document.activeElement"))
    assert page.faults == []


def test_checks_are_told_by_word_icon_and_edge(page):
    edges = set()
    for call, icon, word in (
        ("[976, 950]", "✗", "Not right yet"),
        ("...", "○", "To do"),
        ("[961, 974]", "✓", "Right"),
    ):
        card = output(page, call).locator(".course-card")
        card.wait_for()
        assert card.inner_text().startswith(f"{icon} {word} 1.1")
        edges.add(card.evaluate("one => getComputedStyle(one).borderLeftColor"))
    assert len(edges) == 3
    assert "of 9 done in this chapter, next: " in card.inner_text()


def test_the_quiz_is_answered_by_keys(page):
    quiz = output(page, "quiz(1)").get_by_role("form", name="Quiz of chapter 1")
    groups = quiz.get_by_role("group")
    assert groups.count() == GROUPS
    assert quiz.bounding_box()["height"] < 560
    first = groups.nth(0).get_by_role("radio")
    first.nth(0).focus()
    page.keyboard.press("ArrowRight")
    assert first.nth(1).is_checked() and focused(page, first.nth(1))
    page.keyboard.press("Tab")  # to the next group, not to the next choice
    second = groups.nth(1).get_by_role("radio")
    assert focused(page, second.nth(0))
    page.keyboard.press("Space")
    for _ in range(GROUPS - 1):
        page.keyboard.press("Tab")
    button = quiz.get_by_role("button", name="Check")
    assert focused(page, button)
    page.keyboard.press("Enter")
    score = quiz.get_by_role("status")
    real_lab.wait_until(lambda: score.inner_text() == "1 of 5 right, 3 not answered yet")
    assert abs(score.bounding_box()["y"] - button.bounding_box()["y"]) < 20
    looks = {}
    for place, (icon, word) in enumerate((("✓", "Right."), ("✗", "No: 4."), ("○", "Not answered"))):
        group = groups.nth(place)
        assert f"{icon} {word}" in group.inner_text()
        looks[icon] = group.evaluate("one => getComputedStyle(one).borderTopColor + one.className")
    assert len(set(looks.values())) == 3
    page.keyboard.press("Shift+Tab")
    assert page.faults == []


def test_a_launch_ends_with_its_time(page):
    real_lab.wait_until(lambda: "2 ranks, " in output(page, "time.sleep").inner_text())
    assert "ready" not in output(page, "time.sleep").inner_text()


def test_nothing_is_in_the_way_of_those_who_see_little_or_listen(page):
    found = faults_in_both_themes(page, ".course-card", ".course-quiz", ".course-prediction")
    assert not found, "\n".join(found)
