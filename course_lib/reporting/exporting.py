"""From the notebook of a report to one HTML file that needs no network, and to a PDF."""

import html
import os
import subprocess
import sys
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from course_lib.lab.chromium import INSTALL_CHROMIUM, browser_path
from course_lib.problem import Problem

PRINT_LIMIT_S = 60
NO_BROWSER = (
    f"there is no PDF: {INSTALL_CHROMIUM}, and ask again; or open the HTML in any browser and "
    "print it to a file"
)
# No script runs, and no other machine is asked for anything, whatever the page contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def to_html(notebook: Any, folder: Path) -> str:
    """The page by nbconvert, with its style and pictures inside.

    Pictures that the learner's Markdown names are looked for in `folder`.
    """
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    settings = Config()
    settings.HTMLExporter.template_name = "basic"  # only the cells: the others load scripts
    settings.HTMLExporter.embed_images = True
    settings.HTMLExporter.exclude_input = True
    settings.HTMLExporter.exclude_anchor_links = True
    exporter = HTMLExporter(config=settings)
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"path": str(folder)}})
    style = files("course_lib.reporting").joinpath("page.css").read_text(encoding="utf-8")
    title = html.escape(notebook.metadata["title"])
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style}</style></head>\n<body>{body}</body></html>\n"
    )


def to_pdf(page: Path, target: Path) -> None:
    """Print an HTML file by the Chromium of this machine, or by nbconvert with playwright's.

    Raises Problem where there is no browser, or it does not print.
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
