"""Chapters and panels in a real JupyterLab, in a real Chromium, moved by keys."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
import real_lab
from playwright.sync_api import Browser, Locator, Page

from course_lib import panels
from course_lib.reporting.exporting import BROWSERS, browser_path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHAPTER = "01_steps_and_batches.ipynb"
PANELS = [name for name in dir(panels) if name != "Panel"]


@dataclass
class Opened:
    """A notebook in the browser, and the errors that its page reported."""

    page: Page
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if browser_path() is None:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        names = ", ".join(BROWSERS)
        refuse(f"no browser: none of {names} is installed (on Debian: apt install chromium)")
    with real_lab.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_lab.Lab]:
    """JupyterLab on a copy of the notebooks, and on one notebook with every panel."""
    home = tmp_path_factory.mktemp("lab")
    root = home / "root"
    shutil.copytree(NOTEBOOKS, root, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    nbformat.write(real_lab.notebook(*(f"panels.{name}()" for name in PANELS)), root / "all.ipynb")
    with real_lab.running_lab(root, home) as running:
        yield running
    assert real_lab.processes_of(home) == []


@pytest.fixture
def opened(browser: Browser, lab: real_lab.Lab, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The notebook named by the test, opened and run to its end."""
    notebook = Opened(lab.new_page(browser))
    notebook.page.on("pageerror", lambda error: notebook.errors.append(str(error)))
    notebook.page.on(
        "console", lambda said: notebook.errors.append(said.text) if said.type == "error" else None
    )
    lab.open(notebook.page, request.param)
    real_lab.run_all(notebook.page)
    yield notebook
    notebook.page.close()


def panel(page: Page, place: int = 0) -> Locator:
    found = page.locator(".jp-OutputArea .widget-vbox").nth(place)
    found.locator("svg[role=img]").wait_for()
    return found


def shown(panel: Locator) -> tuple[str, str, str]:
    """What a sighted reader sees, what a screen reader says, and the numbers."""
    svg = panel.locator("svg[role=img]")
    table = panel.get_by_role("table", name="The numbers")
    return without_ids(svg.inner_html()), svg.get_attribute("aria-label"), table.inner_text()


def without_ids(svg: str) -> str:
    return re.sub(r"f\d+-", "", svg)


@pytest.mark.parametrize("opened", [CHAPTER], indirect=True)
def test_chapter_runs_and_its_slider_moves_by_key(opened: Opened) -> None:
    page = opened.page
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    first = panel(page)
    before = shown(first)
    value = first.get_by_role("spinbutton", name="micro-batch").input_value()
    slider = first.get_by_role("slider").nth(1)
    slider.focus()
    page.keyboard.press("ArrowRight")
    box = first.get_by_role("spinbutton", name="micro-batch")
    real_lab.wait_until(lambda: box.input_value() == str(int(value) + 1))
    real_lab.wait_until(lambda: shown(first)[2] != before[2])
    for old, new in zip(before, shown(first), strict=True):
        assert old != new
    assert slider.evaluate("slider => slider === document.activeElement"), "the focus was lost"
    assert opened.errors == []


@pytest.mark.parametrize("opened", ["all.ipynb"], indirect=True)
def test_every_panel_by_keyboard(opened: Opened) -> None:
    page = opened.page
    for place, name in enumerate(PANELS):
        every_control_is_named_and_reached(page, panel(page, place), name)
    both_ends_of_a_slider(page, panel(page, PANELS.index("critical_batch")))
    problem_is_an_alert_and_passes(page, panel(page, PANELS.index("memory")))
    assert opened.errors == []


def every_control_is_named_and_reached(page: Page, shown: Locator, name: str) -> None:
    """Each box has a name of its own; Tab visits each control and slider once, in order."""
    boxes = shown.locator("input, select")
    names = [box.evaluate(_ACCESSIBLE_NAME) for box in boxes.all()]
    assert all(names) and len(set(names)) == len(names), (name, names)
    stops = shown.locator("input, select, [role=slider]")
    stops.first.focus()
    for stop in stops.all():
        assert stop.evaluate("stop => stop === document.activeElement"), (name, stop)
        page.keyboard.press("Tab")
    sliders = shown.get_by_role("slider").count()
    assert sliders == shown.locator(".widget-hbox").count(), "a slider without its named box"


_ACCESSIBLE_NAME = """input => [...input.labels].map(label => label.textContent.trim()).join(' ')
                               || input.getAttribute('aria-label')"""


def both_ends_of_a_slider(page: Page, critical: Locator) -> None:
    batch = critical.get_by_role("slider").first
    batch.focus()
    for key, value in (("End", "16384"), ("Home", "8")):
        page.keyboard.press(key)
        chosen = critical.get_by_role("combobox", name="batch", exact=True)
        real_lab.wait_until(lambda: chosen.locator("option:checked").inner_text() == value)  # noqa: B023
        real_lab.wait_until(lambda: f"batch {value}" in shown(critical)[2])  # noqa: B023


def problem_is_an_alert_and_passes(page: Page, memory: Locator) -> None:
    height = memory.bounding_box()["height"]
    sequence = memory.get_by_role("combobox", name="sequence")
    sequence.select_option("2048")
    alert = memory.get_by_role("alert")
    alert.wait_for()
    assert "longer than the 1024 positions" in alert.inner_text()
    assert memory.locator("svg[role=img]").count() == 0
    assert height - memory.bounding_box()["height"] < 300  # the table goes, the figure's room stays
    sequence.select_option("512")
    memory.locator("svg[role=img]").wait_for()
    assert alert.count() == 0
