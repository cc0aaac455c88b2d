"""The site in a real Chromium, without a network: its pages, and panels that move on them."""

import json
import random
import re
import sys
import threading
from pathlib import Path

import pytest
import real_lab
from accessibility import faults

sys.path.append(str(Path(__file__).parents[1] / "site"))

from small_site import NEEDS_A_KERNEL, built, cells, without_ids

from course_lib.site import live, packed

pytestmark = pytest.mark.timeout(1200)  # beside much else
WIDTHS = (390, 768, 1280)
PAGE = "notebooks/01_all.html"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where a server shows the site."""
    with pytest.MonkeyPatch.context() as patched:
        folder = built(tmp_path_factory.mktemp("site"), patched)
    with packed.server(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(browser, address):
    """A page that may ask nobody but the server, and must report no error."""
    errors = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(1000 * real_lab.CELLS_TIMEOUT_MS / 1000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: errors.append(asked.url) if address not in asked.url else None)
    yield page
    page.close()
    assert errors == []


def figure(panel):
    return panel.locator(".course-figure")


def test_a_panel_is_a_picture_that_moves_at_its_first_touch(page, address):
    loaded = []
    page.on("response", lambda answer: loaded.append(answer.url.rpartition("/")[2]))
    page.goto(f"{address}/{PAGE}")
    panel = page.locator(".live#\\30 1_all-batches")
    assert "loads Python into the page, 7 MB once" in panel.locator(".loads").inner_text()
    assert "worker.js" not in loaded, "nothing is loaded for a panel that nobody touches"
    slider = panel.get_by_role("slider", name="micro-batch")
    before = figure(panel).inner_html()
    for value in (6, 7):
        slider.press("ArrowRight")
        real_lab.wait_until(lambda: figure(panel).inner_html() != before, 240)  # noqa: B023
        real_lab.wait_until(lambda: panel.locator(".loads").inner_text() == "")
        before = figure(panel).inner_html()
        assert slider.get_attribute("aria-valuetext") == str(value)
        told = shown_here("batches", {"micro_batch": value - 1})
        assert f"micro-batch {value} ×" in told["sentence"]
        said = figure(panel).locator("svg[role=img]").get_attribute("aria-label")
        assert said == told["sentence"]


def shown_here(name, values):
    """What CPython shows for the panel at these indices, with ipywidgets."""
    return json.loads(live.move(f"here-{name}", cells()[name], json.dumps(values)))["shown"]


# Sends all settings of a panel to the page's Python, and collects what it answers.
_ASK = """async ({key, source, settings}) => {
    window.python ??= new Worker("../python/worker.js", {type: "module"});
    const answers = [];
    for (const values of settings) {
        answers.push(await new Promise(done => {
            python.onmessage = ({data}) => done(data);
            python.postMessage({key, source, values});
        }));
    }
    return answers;
}"""


@pytest.mark.parametrize(
    "times", [pytest.param(3, id="few"), pytest.param(200, id="many", marks=pytest.mark.slow)]
)
def test_numbers_and_pictures_are_those_of_cpython(page, address, times):
    page.goto(f"{address}/{PAGE}")
    for name, source in cells().items():
        if name in NEEDS_A_KERNEL:
            continue
        controls = json.loads(live.move(f"{times}-{name}", source))["controls"]
        dice = random.Random(name)
        settings = [
            {each["name"]: dice.randrange(_many(each)) for each in controls} for _ in range(times)
        ]
        asked = {"key": f"{times}-{name}", "source": source, "settings": settings}
        for values, answer in zip(settings, page.evaluate(_ASK, asked), strict=True):
            here = json.loads(live.move(f"{times}-{name}", source, json.dumps(values)))
            assert _comparable(answer["told"]) == _comparable(here), (name, values)


def _many(control):
    return len(control["texts"]) if "texts" in control else control["most"] - control["least"] + 1


def _comparable(told):
    """Without hatches' numbers, and without what depends on how long a search was allowed."""
    shown = {**told["shown"], "page": without_ids(told["shown"]["page"])}
    del shown["mends"]
    return {**told, "shown": shown}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_every_width_and_have_no_grave_fault(page, address, theme):
    page.emulate_media(color_scheme=theme)
    for path in ("index.html", PAGE):
        page.goto(f"{address}/{path}")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            wide = "document.documentElement.scrollWidth"
            assert page.evaluate(wide) <= width, (path, width)
        assert faults(page, "body") == []


def test_the_theme_can_be_chosen_and_stays(page, address):
    page.goto(f"{address}/index.html")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate(paper)
    assert dark != light
    page.goto(f"{address}/{PAGE}")
    assert page.evaluate(paper) == dark


def test_search_finds_words_of_a_section_and_leads_there(page, address):
    page.goto(f"{address}/index.html")
    page.keyboard.press("/")
    page.keyboard.type("moving panels")
    page.locator("#found a").first.wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"01_all\.html#1\.1-Moving"))
    assert page.locator("[id='1.1-Moving']").bounding_box()["y"] < 900


def test_paper_has_no_menu_and_is_white(page, address):
    page.emulate_media(media="print", color_scheme="dark")
    page.goto(f"{address}/{PAGE}")
    assert not page.locator("header").is_visible() and not page.locator(".menu").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf()[:4] == b"%PDF"


def test_without_a_script_there_are_pictures_and_words(browser, address):
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"{address}/{PAGE}")
    for name in cells():
        panel = page.locator(f"[id='01_all-{name}'] svg[role=img]")
        assert name in NEEDS_A_KERNEL or panel.first.is_visible(), name
    page.close()
