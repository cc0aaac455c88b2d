"""What `course lab` brings to JupyterLab: a page to read, folds, links, and the learner's own."""

import json
import re
import shutil
from pathlib import Path

import pytest
import real_lab
from accessibility import OURS, faults_in_both_themes

from course_lib.building.notebooks import FIRST_LINE, FOLD

pytestmark = pytest.mark.timeout(1200)  # beside much else
REPOSITORY = Path(__file__).parents[2]
FIRST, SECOND = "notebooks/00_start_here.ipynb", "notebooks/01_steps_and_batches.ipynb"
EXERCISES = "exercises/01_steps_and_batches.ipynb"
# A table that is wider than its cell, in words and numbers that must stay whole.
WIDE = "print('\\n'.join('  '.join(f'{row}{n:05} full batches' for n in range(9)) for row in 'ab'))"


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    home = tmp_path_factory.mktemp("lab")
    root = home / "root"
    root.mkdir()
    for name in (FIRST, SECOND, EXERCISES):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    source = "from course_lib import panels, show_source\nshow_source(panels.Panel)"
    made = real_lab.notebook(WIDE, source, before="many words " * 100)
    (root / "page.ipynb").write_text(made)
    real_lab.setting(home, "apputils-extension/themes", {"theme": "JupyterLab Dark"})
    with real_lab.running_lab(root, home) as running:
        yield running


def opened(lab, browser, name, width=1280):
    page = lab.new_page(browser, width, height=800)
    lab.open(page, name)
    return page


@pytest.mark.parametrize("width", [640, 1280, 1920])
def test_a_page_to_read_at_every_width(lab, browser, width):
    page = opened(lab, browser, "page.ipynb", width)
    real_lab.run_all(page)
    book = page.locator(".jp-WindowedPanel-viewport").bounding_box()
    cell = page.locator(".jp-Cell").first.bounding_box()
    assert cell["width"] <= 960 and (cell["width"] == 960 or width < 1920)
    middle = cell["x"] + cell["width"] / 2 - (book["x"] + book["width"] / 2)
    assert abs(middle) < 1, "the page stands in the middle"
    prose = page.locator(".jp-RenderedMarkdown p").first
    assert prose.bounding_box()["width"] <= 44 * 16
    assert prose.evaluate("p => getComputedStyle(p).fontSize") == "16px"
    cut = page.locator(".jp-RenderedText pre").first.evaluate(_CUT_WORDS)
    assert cut == []
    wide = page.locator(".jp-Notebook").evaluate("each => each.scrollWidth - each.clientWidth")
    assert wide <= 0, "nothing makes the page scroll sideways"
    page.close()


# The words of an element that stand on two lines.
_CUT_WORDS = """pre => {
    const cut = [], range = document.createRange();
    const texts = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT);
    for (let text; (text = texts.nextNode()); ) {
        for (const word of text.data.matchAll(/\\S+/g)) {
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map(line => line.top)).size > 1)
                cut.push(word[0]);
        }
    }
    return cut;
}"""


def test_cut_words_are_noticed(lab, browser):
    """Without the style JupyterLab does cut words: the test above looks at something."""
    page = opened(lab, browser, "page.ipynb")
    real_lab.run_all(page)
    page.evaluate("document.querySelector('link[href*=course-style]').remove()")
    assert page.locator(".jp-RenderedText pre").first.evaluate(_CUT_WORDS) != []
    page.close()


def test_a_source_is_folded_and_coloured_even_where_the_notebook_is_not_trusted(lab, browser):
    notebook = json.loads(real_lab.notebook())
    html = "<details><summary>Source: f, 99 lines</summary>" + (
        '<div class="highlight"><pre><span class="k">def</span></pre></div></details>'
    )
    data = {"text/html": html, "text/plain": "def"}
    output = {"output_type": "display_data", "data": data, "metadata": {}}
    notebook["cells"] = [real_lab.code_cell("elsewhere", output) | {"id": "elsewhere"}]
    (lab.root / "foreign.ipynb").write_text(json.dumps(notebook))
    for name in ("page.ipynb", "foreign.ipynb"):
        page = opened(lab, browser, name)
        if name == "page.ipynb":
            real_lab.run_all(page)
        keyword = page.locator(".jp-OutputArea-output .highlight .k").first
        assert not keyword.is_visible()
        page.locator("summary", has_text=re.compile(r"Source: .*, \d+ lines")).click()
        assert keyword.is_visible()
        colours = [
            each.evaluate("each => getComputedStyle(each).color")
            for each in (keyword, page.locator("summary"), page.locator(".highlight pre").first)
        ]
        assert len(set(colours)) == 3, "the theme colours keywords and what can be opened"
        page.close()


def test_the_learners_theme_stays_and_no_news_is_fetched(lab, browser):
    page = opened(lab, browser, FIRST)
    assert page.evaluate("document.body.dataset.jpThemeName") == "JupyterLab Dark"
    assert page.locator(".Toastify__toast").count() == 0
    head = page.locator(".jp-DirListing-headerItem:visible").all_inner_texts()
    assert [text.strip() for text in head if text.strip()] == ["Name"]
    page.close()


# Of each block of code, whether one of its lines is longer than the page is wide.
_WRAPPED = """all => all.map(pre => {
    const lines = pre.textContent.trimEnd().split('\\n').length;
    return pre.offsetHeight > 1.2 * lines * parseFloat(getComputedStyle(pre).lineHeight);
})"""
UNSAVED = ".lm-TabBar-tab.lm-mod-current.jp-mod-dirty"


def test_widgets_are_saved_and_imports_are_folded(lab, browser):
    page = opened(lab, browser, FIRST)
    assert page.locator(UNSAVED).count() == 0, "nothing was done yet"
    folded = page.locator(".jp-InputPlaceholder:visible").all_inner_texts()
    assert folded == [FOLD, FIRST_LINE["answer"]]
    # The first thing to click works without a click on the folded imports.
    page.locator(".cm-content", has_text="steppers.block()").click()
    page.keyboard.press("Control+Enter")
    page.locator(".course-panel svg[role=img]").first.wait_for()
    real_lab.run_all(page)
    page.keyboard.press("Control+s")
    state = '"application/vnd.jupyter.widget-state+json"'
    real_lab.wait_until(lambda: state in (lab.root / FIRST).read_text(encoding="utf-8"))
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    assert faults_in_both_themes(page, *OURS) == []
    real_lab.use_theme(page, "Dark")
    page.close()


def test_the_line_of_links_opens_the_next_chapter(lab, browser):
    page = opened(lab, browser, FIRST)
    page.get_by_role("link", name="1 Steps and batches →").first.click()
    page.locator(".jp-Notebook h1", has_text="1 Steps and batches").wait_for()
    current = page.locator(".lm-TabBar-tab.lm-mod-current", has_text=Path(SECOND).name)
    current.wait_for()
    code = page.locator(".jp-RenderedMarkdown pre")
    code.first.wait_for()
    assert code.evaluate_all(_WRAPPED) == [False], "a line of code stands on two lines"
    page.get_by_role("link", name="exercises", exact=True).first.click()
    page.locator(".jp-Notebook h1", has_text="Exercises: 1 Steps and batches").wait_for()
    name = current.locator(".lm-TabBar-tabLabel").last
    assert "Exercises" in name.evaluate("each => getComputedStyle(each, '::before').content")
    page.close()
