"""Write a report into the learner's folder, without overwriting any other file."""

import hashlib
import html
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from course_lib.chapters.ch17_capstone.reporting import texts
from course_lib.chapters.ch17_capstone.reporting.facts import Check, checks, gather
from course_lib.chapters.ch17_capstone.reporting.page import notebook
from course_lib.lab.chromium import INSTALL_CHROMIUM, browser_path
from course_lib.mine import free_name
from course_lib.problem import Problem

PAGE, PRINTED = "report.html", "report.pdf"
PRINT_LIMIT_S = 60
NO_BROWSER = (
    f"there is no PDF: {INSTALL_CHROMIUM}, and ask again; or open the HTML in any browser and "
    "print it to a file"
)
# The page runs no script and loads nothing from the network, whatever it contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_MARK = "<!-- made by `course report`, unchanged: "


@dataclass(frozen=True)
class Report:
    """Paths of a report and its checks; `pdf` is None if there is none, and `note` says why."""

    html: Path
    pdf: Path | None
    words: Path
    checks: tuple[Check, ...]
    note: str = ""

    def __str__(self) -> str:
        lines = [check.line for check in self.checks]
        lines += [f"wrote {path}" for path in (self.html, self.pdf) if path]
        lines += [f"note: {self.note}"] if self.note else []
        return "\n".join([*lines, f"your own words: {self.words}"])

    __repr__ = __str__

    def data(self) -> dict[str, Any]:
        """The report's paths, checks and note as a dict for JSON."""
        return {
            "html": str(self.html),
            "pdf": str(self.pdf) if self.pdf else None,
            "words": str(self.words),
            "checks": [asdict(check) for check in self.checks],
            "note": self.note,
        }


def report(
    name: str = "", folder: Path | str | None = None, *, pdf: bool = True, race: bool = False
) -> Report:
    """Make the page of what you have done, as HTML and PDF; returns its paths and checks.

    `name` is shown on the page if it is given. `folder`: the output folder, by default `report/`
    next to `mine/`. `race` measures your parts against the course's, which takes a minute or two.
    Your own words are read from `report/defence.md`, which is created once and never changed. An
    older report is replaced, but a file that was changed or is not a report is renamed first.
    Raises Problem for a folder that cannot be written.
    """
    target = Path(folder) if folder else texts.folder()
    try:
        words = texts.prepare()
        facts = gather(words, name, race)
        target.mkdir(parents=True, exist_ok=True)
        page = _free(target)
        _write(page, to_html(notebook(facts), words.parent))
    except OSError as error:
        raise Problem(
            f"{target} cannot be written ({error.strerror}): name a folder of yours"
        ) from error
    printed, note = None, ""
    if pdf:
        try:
            printed = page.with_name(PRINTED)
            to_pdf(page.absolute(), printed.absolute())
        except Problem as problem:
            printed, note = None, str(problem)
    return Report(page, printed, words, tuple(checks(facts)), note)


def _free(folder: Path) -> Path:
    """The path for a new page; an existing file that is not an unchanged report is renamed."""
    page, printed = folder / PAGE, folder / PRINTED
    if not (page.exists() and _is_ours(page)):
        for path in (page, printed):
            if path.exists():
                os.replace(path, free_name(path))
    return page


def _write(page: Path, text: str) -> None:
    page.write_bytes(f"{text}{_MARK}{_checksum(text)} -->\n".encode())


def _is_ours(page: Path) -> bool:
    """Whether the page is an unchanged report: its last line has a checksum of the rest."""
    text, _, mark = page.read_bytes().decode("utf-8", errors="replace").rpartition(_MARK)
    return mark.removesuffix(" -->\n") == _checksum(text)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_html(notebook: Any, folder: Path) -> str:
    """Convert the notebook to HTML by nbconvert, with embedded style and pictures.

    Relative paths of pictures in the learner's Markdown refer to `folder`.
    """
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    settings = Config()
    settings.HTMLExporter.template_name = "basic"  # cells only: other templates load scripts
    settings.HTMLExporter.embed_images = True
    settings.HTMLExporter.exclude_input = True
    settings.HTMLExporter.exclude_anchor_links = True
    exporter = HTMLExporter(config=settings)
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"path": str(folder)}})
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    title = html.escape(notebook.metadata["title"])
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style}</style></head>\n<body>{body}</body></html>\n"
    )


def to_pdf(page: Path, target: Path) -> None:
    """Print an HTML file to PDF with this machine's Chromium, or with playwright's.

    Raises Problem if there is no browser, or if it fails.
    """
    browser = browser_path()
    if browser:
        _print(browser, page, target)
    elif find_spec("playwright"):
        target.write_bytes(_by_playwright(page.read_text(encoding="utf-8")))
    else:
        raise Problem(NO_BROWSER)


def _print(browser: str, page: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="course-print-") as profile:
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--no-pdf-header-footer",
            f"--user-data-dir={profile}",
            f"--print-to-pdf={target}",
            page.as_uri(),
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # the sandbox refuses root, as in containers
        target.unlink(missing_ok=True)
        try:
            done = subprocess.run(command, capture_output=True, timeout=PRINT_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Problem(f"{browser} did not print the report: {error}") from error
    if not target.is_file():
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise Problem(f"{browser} did not print the report: {' '.join(said) or 'it says nothing'}")


def _by_playwright(text: str) -> bytes:
    from nbconvert import WebPDFExporter

    try:
        printed: bytes = WebPDFExporter(disable_sandbox=sys.platform == "linux").run_playwright(
            text
        )
    except RuntimeError as error:  # nbconvert's own, without a browser
        raise Problem(NO_BROWSER) from error
    return printed
