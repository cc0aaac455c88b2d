"""What axe-core finds wrong in a page for those who read it by keyboard, ear or low sight."""

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import real_lab

if TYPE_CHECKING:
    from playwright.sync_api import Page

GRAVE = ("serious", "critical")
OURS = (".jp-OutputArea-output", ".jp-MarkdownOutput")  # the rest of a page is JupyterLab's


@dataclass(frozen=True)
class Fault:
    """One rule of axe-core that one element breaks: `where` is its selector, `what` the remedy."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.where}: {self.what}"


def faults(page: "Page", *within: str) -> list[Fault]:
    """The grave faults inside the elements that `within` selects; those of JupyterLab are its own.

    What is folded is opened first, so that it is looked at too.
    Raises LookupError when `within` selects nothing, so that a test cannot look past its page.
    """
    if not page.locator(", ".join(within)).count():
        raise LookupError(f"nothing on the page is {' or '.join(within)}")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate(_RUN, list(within))
    return [
        Fault(rule["id"], " ".join(map(str, node["target"])), node["failureSummary"])
        for rule in found["violations"]
        for node in rule["nodes"]
        if node["impact"] in GRAVE
    ]


def faults_in_both_themes(page: "Page", *within: str) -> list[str]:
    """The grave faults in the dark theme and in the light one, which stays."""
    found = []
    for theme in ("Dark", "Light"):
        real_lab.use_theme(page, theme)
        found += [f"{theme}: {fault}" for fault in faults(page, *within)]
    return found


# JupyterLab's body is 0 px high: for axe, nothing in it would be visible, and no contrast judged.
_RUN = """within => {
    document.body.style.overflow = 'visible';
    const include = [...document.querySelectorAll(within.join(', '))];
    for (const each of include) {
        for (const fold of each.querySelectorAll('details')) fold.open = true;
    }
    return axe.run({include}, {resultTypes: ['violations']});
}"""
