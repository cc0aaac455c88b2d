"""Chapters and panels in a real JupyterLab, in a real Chromium, moved by keys.

axe-core finds no grave fault in what they show, in the light theme and in the dark one.
"""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import real_lab
from accessibility import OURS, faults, faults_in_both_themes
from all_rooms import panels, steppers

pytestmark = pytest.mark.timeout(1200)  # beside much else
JUPYTERLAB_PX = 121  # its bars above and below a notebook
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHAPTER = "01_steps_and_batches.ipynb"
PANELS = [*vars(panels)]
STEPPERS = [*vars(steppers)]


@dataclass
class Opened:
    """A notebook in the browser, and the errors that its page reported."""

    page: Any
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """JupyterLab on a copy of the notebooks, and on notebooks with all panels and all steppers."""
    home = tmp_path_factory.mktemp("lab")
    root = home / "root"
    shutil.copytree(NOTEBOOKS, root, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    made = {
        "all": [f"panels.{name}()" for name in PANELS],
        "steps": [
            *(f"steppers.{name}()" for name in STEPPERS),
            "from course_lib import quiz, show_source\nshow_source(show_source)",
            "quiz(1)",
        ],
        "kept": ["from course_lib import panels\n\npanels.batches()"],
    }
    for name, cells in made.items():
        (root / f"{name}.ipynb").write_text(real_lab.notebook(*cells))
    faulty = "<p style='color: #888'>faint</p><button></button>"
    cell = f'from IPython.display import HTML\nHTML("{faulty}")'
    (root / "faulty.ipynb").write_text(real_lab.notebook(cell))
    with real_lab.running_lab(root, home) as running:
        yield running
    assert real_lab.processes_of(home) == []


@pytest.fixture
def opened(browser, lab, request):
    """The notebook named by the test, opened and run to its end."""
    notebook = Opened(lab.new_page(browser))
    notebook.page.on("pageerror", lambda error: notebook.errors.append(str(error)))
    notebook.page.on(
        "console", lambda said: notebook.errors.append(said.text) if said.type == "error" else None
    )
    notebook.page.add_init_script(_INTERVALS)
    lab.open(notebook.page, request.param)
    real_lab.run_all(notebook.page)
    yield notebook
    notebook.page.close()


# Keeps in `intervals` how often what the page repeats is repeated, in ms.
_INTERVALS = """
    const repeat = window.setInterval;
    window.intervals = [];
    window.setInterval = (what, ms, ...more) => (intervals.push(ms), repeat(what, ms, ...more));
"""


def panel(page, place=0):
    found = page.locator(".jp-OutputArea .course-panel").nth(place)
    found.locator("svg[role=img]").wait_for()
    return found


def shown(panel):
    """What a sighted reader sees, what a screen reader says, and the numbers."""
    svg = panel.locator("svg[role=img]")
    table = panel.locator("table")
    words = table.inner_text() if table.count() else ""
    return without_ids(svg.inner_html()), svg.get_attribute("aria-label"), words


def without_ids(svg):
    return re.sub(r"[fd]\d+-", "", svg)


@pytest.mark.parametrize("opened", [CHAPTER], indirect=True)
def test_chapter_runs_and_its_slider_moves_by_key(opened):
    page = opened.page
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    first = panel(page)
    before = shown(first)
    slider = first.get_by_role("slider", name="micro-batch")
    value = int(slider.get_attribute("aria-valuetext"))
    slider.focus()
    page.keyboard.press("ArrowRight")
    real_lab.wait_until(lambda: shown(first)[2] != before[2])
    for old, new in zip(before, shown(first), strict=True):
        assert old != new
    assert slider.get_attribute("aria-valuetext") == str(value + 1)
    assert first.get_by_role("spinbutton", name="micro-batch").input_value() == str(value + 1)
    assert slider.evaluate("slider => slider === document.activeElement"), "the focus was lost"
    assert opened.errors == []
    # ipywidgets gives the handle of the learner's own, plain slider no name.
    found = faults_in_both_themes(page, *OURS)
    assert [fault for fault in found if ".noUi-handle" not in fault] == []


@pytest.mark.parametrize("opened", ["faulty.ipynb"], indirect=True)
def test_faults_are_found_in_either_theme(opened):
    for theme, rules in (("Dark", {"button-name"}), ("Light", {"color-contrast", "button-name"})):
        real_lab.use_theme(opened.page, theme)  # the grey is legible on black
        # A theme's colours come a moment after its name.
        real_lab.wait_until(lambda: {f.rule for f in faults(opened.page, *OURS)} == rules)  # noqa: B023
    with pytest.raises(LookupError, match=r"nothing on the page is \.absent"):
        faults(opened.page, ".absent")


# Controls that change nothing until another one is moved; tests/panels gives them that company.
NEEDS_COMPANY = {
    ("activations", "attention"),
    ("activations", "dropout"),
    ("activations", "tensor parallel"),
    ("collectives", "kind of tree"),
    ("fsdp_memory", "prefetch"),
    ("fsdp_memory", "reshard"),
}


@pytest.mark.parametrize("opened", ["all.ipynb"], indirect=True)
def test_every_panel_by_keyboard(opened):
    page, still = opened.page, set()
    for place, name in enumerate(PANELS):
        found = panel(page, place)
        every_control_is_named_and_reached(page, found, name)
        no_value_sticks_out(found, name)
        fits_in_a_window(found, name)
        still |= every_control_moves_to_both_ends(page, found, name)
    assert not still - NEEDS_COMPANY, sorted(still - NEEDS_COMPANY)
    problem_is_an_alert_with_buttons(page, panel(page, PANELS.index("memory")))
    assert faults_in_both_themes(page, *OURS) == []
    assert opened.errors == []


@pytest.mark.parametrize("opened", ["steps.ipynb"], indirect=True)
def test_every_stepper_walks_and_plays(opened):
    page = opened.page
    for place, name in enumerate(STEPPERS):
        found = panel(page, place)
        every_control_is_named_and_reached(page, found, name)
        no_value_sticks_out(found, name)
        fits_in_a_window(found, name)
        first = shown(found)
        page.evaluate("intervals.length = 0")
        found.get_by_role("button", name="Play").press("Enter")
        real_lab.wait_until(lambda: shown(found) != first)  # noqa: B023
        assert page.evaluate("Math.max(...intervals)") >= 2500, "too fast to read"
        found.get_by_role("button", name="Pause").press("Enter")
        found.get_by_role("slider", name="step").press("End")
        found.get_by_role("button", name="One step back").press("Enter")
        height = found.bounding_box()["height"]
        found.get_by_role("slider", name="step").press("Home")
        real_lab.wait_until(lambda: shown(found) == first)  # noqa: B023
        assert found.bounding_box()["height"] == height, f"{name} jumps"
    assert faults_in_both_themes(page, *OURS) == []
    assert opened.errors == []


def fits_in_a_window(shown, name):
    """The controls and the whole figure are in sight at once in a window of 800 px."""
    shown, figure = shown.bounding_box(), shown.locator("svg[role=img]").bounding_box()
    seen = 800 - JUPYTERLAB_PX
    assert figure["y"] + figure["height"] - shown["y"] <= seen, name


def no_value_sticks_out(shown, name):
    """A value with its unit stays inside its control, and never lies over the next one."""
    wide = shown.locator(".course-control").evaluate_all(
        "all => all.filter(each => each.scrollWidth > each.clientWidth + 1)"
        ".map(each => each.textContent)"
    )
    assert wide == [], f"{name}: {wide}"


def every_control_is_named_and_reached(page, shown, name):
    """Each control has a name of its own; Tab visits each once, in order."""
    stops = shown.locator("input, select, button:visible")
    names = [stop.evaluate(_ACCESSIBLE_NAME) for stop in stops.all()]
    assert all(names) and len(set(names)) == len(names), (name, names)
    stops.first.focus()
    for stop in stops.all():
        assert stop.evaluate("stop => stop === document.activeElement"), (name, stop)
        page.keyboard.press("Tab")


_ACCESSIBLE_NAME = """input => [...input.labels].map(label => label.textContent.trim()).join(' ')
                               || input.getAttribute('aria-label')"""


def every_control_moves_to_both_ends(page, found, name):
    """Nothing below jumps up. Returns the controls that changed neither figure nor words."""
    still = set()
    keys = {"range": ("Home", "End"), "select-one": ("Home", "End"), "checkbox": ("Space",)}
    for control in found.locator("input:not([type=number]), select").all():
        control.focus()
        tall = found.bounding_box()["height"]
        for key in keys[control.evaluate("control => control.type")]:
            before, value = said(found), control.evaluate(_VALUE)
            page.keyboard.press(key)
            moved = (name, control.evaluate(_ACCESSIBLE_NAME))
            patience_s = 0.3 if moved in NEEDS_COMPANY else 20
            if control.evaluate(_VALUE) != value and not changes(found, before, patience_s):
                still.add(moved)
            assert found.bounding_box()["height"] >= tall - 1, f"{name} jumps"
            assert not re.search(r"\de[+-]\d", found.inner_text()), f"{name}: {found.inner_text()}"
        if mends := found.get_by_role("alert").get_by_role("button").all():
            mends[-1].press("Enter")
            found.get_by_role("alert").wait_for(state="hidden")
    return still


def changes(found, before, within_s):
    try:
        real_lab.wait_until(lambda: said(found) != before, timeout_s=within_s)
    except AssertionError:
        return False
    return True


_VALUE = "control => control.type === 'checkbox' ? control.checked : control.value"


def said(found):
    """All that a panel says: the figure in words, its numbers, or the problem."""
    label = found.locator("svg[role=img]").get_attribute("aria-label")
    return f"{label} {found.locator('.course-stage').inner_text()}"


def problem_is_an_alert_with_buttons(page, memory):
    memory.get_by_role("combobox", name="model").select_option(label="gpt2-1.5b (1.56B)")
    sequence = memory.get_by_role("slider", name="sequence")
    sequence.press("Home")
    real_lab.wait_until(lambda: "1 × 128" in said(memory) or "gpt2-1.5b" in said(memory))
    height = memory.bounding_box()["height"]
    sequence.press("End")
    alert = memory.get_by_role("alert")
    alert.wait_for()
    assert "longer than the 1024 positions" in alert.inner_text()
    assert memory.locator("svg[role=img]").count() == 1, "the last figure stays"
    assert memory.bounding_box()["height"] == height
    alert.get_by_role("button", name="Back to sequence").press("Enter")
    alert.wait_for(state="hidden")
    assert sequence.get_attribute("aria-valuetext") == "128"


@pytest.mark.parametrize("opened", ["kept.ipynb"], indirect=True)
def test_a_panel_outlives_its_kernel(opened, lab):
    """Saved and opened again without its kernel: the last figure, and what to do."""
    page = opened.page
    figure = shown(panel(page))
    panel(page).get_by_role("slider", name="micro-batch").press("ArrowRight")
    real_lab.wait_until(lambda: shown(panel(page)) != figure)
    figure = shown(panel(page))
    page.keyboard.press("Control+s")
    kept = lab.root / "kept.ipynb"
    real_lab.wait_until(lambda: '"widgets"' in kept.read_text())
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()
    page.locator("#jp-main-statusbar").get_by_text("No Kernel").first.wait_for()
    panel(page).get_by_role("slider", name="micro-batch").press("ArrowRight")
    panel(page).get_by_text("No answer yet").wait_for()
    labels = panel(page).locator("label").all_inner_texts()
    page.reload()
    panel(page).get_by_text("run its cell again").wait_for()
    assert shown(panel(page)) == figure
    assert panel(page).locator("label").all_inner_texts() == labels, "in another order"
    assert page.get_by_text("Error displaying widget").count() == 0
    # In a new kernel, with no other cell run.
    page.locator(".jp-CodeCell").last.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    panel(page).get_by_text("run its cell again").wait_for(state="hidden")
    assert panel(page).locator("label").all_inner_texts() == labels
    a_value_out_of_range_is_said(panel(page))


def a_value_out_of_range_is_said(batches):
    box = batches.get_by_role("spinbutton", name="micro-batch")
    for typed, taken in (("0", "1"), ("2.5", "3")):
        box.fill(typed)
        box.press("Enter")
        batches.get_by_text(f"micro-batch takes whole numbers from 1 to 64: {typed}").wait_for()
        assert box.input_value() == taken
    box.fill("4")
    box.press("Enter")
    batches.get_by_text("takes whole numbers").wait_for(state="hidden")
