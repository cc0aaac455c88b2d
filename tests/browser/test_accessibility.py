"""axe-core finds no grave fault in what the course shows, in the light theme and the dark one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import real_lab
from accessibility import OURS, faults
from all_rooms import panels, steppers
from playwright.sync_api import Browser, Page

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHAPTER = "00_start_here.ipynb"  # chapter 1 is looked at in test_browser.py, where it runs anyway
EVERY = ["show_source(show_source)", "quiz(1)"]
EVERY += [f"panels.{name}()" for name in vars(panels)]
EVERY += [f"steppers.{name}()" for name in vars(steppers)]


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_lab.Lab]:
    home = tmp_path_factory.mktemp("lab")
    root = home / "root"
    root.mkdir()
    shutil.copy(NOTEBOOKS / CHAPTER, root)
    imports = "from course_lib import quiz, show_source"
    nbformat.write(real_lab.notebook(imports, *EVERY), root / "every.ipynb")
    faulty = "<p style='color: #888'>faint</p><button></button>"
    cell = f'from IPython.display import HTML\nHTML("{faulty}")'
    nbformat.write(real_lab.notebook(cell), root / "faulty.ipynb")
    with real_lab.running_lab(root, home) as running:
        yield running


def opened(lab: real_lab.Lab, browser: Browser, name: str) -> Page:
    page = lab.new_page(browser)
    lab.open(page, name)
    real_lab.run_all(page)
    return page


@pytest.mark.parametrize("name", [CHAPTER, "every.ipynb"])
def test_no_grave_fault_in_either_theme(lab: real_lab.Lab, browser: Browser, name: str) -> None:
    page, said = opened(lab, browser, name), []
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    for theme in ("Light", "Dark"):
        real_lab.use_theme(page, theme)
        said += [f"{theme}: {fault}" for fault in faults(page, *OURS)]
    page.close()
    assert not said, "\n".join(said)


def test_faults_are_found_in_either_theme(lab: real_lab.Lab, browser: Browser) -> None:
    page = opened(lab, browser, "faulty.ipynb")
    for theme, rules in (("Light", {"color-contrast", "button-name"}), ("Dark", {"button-name"})):
        real_lab.use_theme(page, theme)  # the grey is legible on black
        # A theme's colours come a moment after its name.
        real_lab.wait_until(lambda: {f.rule for f in faults(page, *OURS)} == rules)  # noqa: B023
    with pytest.raises(LookupError, match=r"nothing on the page is \.absent"):
        faults(page, ".absent")
    page.close()
