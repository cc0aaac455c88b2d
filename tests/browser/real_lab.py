"""A real JupyterLab and a real Chromium, for the browser tests and for the latency benchmark."""

import json
import os
import secrets
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.lab import command
from course_lib.lab.chromium import browser_path

if TYPE_CHECKING:  # loaded when a browser starts: the collection of tests does without
    import psutil
    from playwright.sync_api import Browser, Page

BROWSER_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# So long takes a machine that does much else; what is there goes on at once.
START_TIMEOUT_S = 180
CELLS_TIMEOUT_MS = 240_000
PATIENCE_S = 60

# All cells are in the page at once, so that a test sees those that are scrolled away.
_ALL_CELLS = {"windowingMode": "none"}


@contextmanager
def chromium() -> "Iterator[Browser]":
    """A headless Chromium without network habits of its own."""
    from playwright.sync_api import sync_playwright

    flags = list(BROWSER_FLAGS)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # the sandbox refuses root, as in containers
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Lab:
    """A running JupyterLab: `url` with its token, `root` the folder that it shows."""

    def __init__(self, root: Path, url: str, token: str) -> None:
        self.root, self.url, self.token = root, url, token

    def new_page(self, browser: "Browser", width: int = 1280, height: int = 1000) -> "Page":
        """An empty page of the size of a small laptop's screen."""
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(1000 * PATIENCE_S)
        return page

    def open(self, page: "Page", notebook: str) -> None:
        """Open a notebook and wait until its kernel is idle."""
        page.goto(f"{self.url}lab/tree/{notebook}?token={self.token}&reset")
        wait_idle(page)


def wait_idle(page: "Page") -> None:
    """Wait until the notebook's kernel is ready and has nothing to do."""
    page.wait_for_function(_IDLE_FOR_A_WHILE, timeout=CELLS_TIMEOUT_MS, polling=50)


# While JupyterLab connects, its signs say "idle" for a moment before there is a kernel: believe
# them when status bar and toolbar have agreed for half a second.
_IDLE_FOR_A_WHILE = """() => {
    const bar = document.querySelector('#jp-main-statusbar')?.textContent ?? '';
    const sign = '.jp-Notebook-ExecutionIndicator[data-status="idle"]';
    const idle = bar.includes('| Idle') && document.querySelector(sign);
    window.idleSince = idle ? (window.idleSince ?? performance.now()) : undefined;
    return idle && performance.now() - window.idleSince > 500;
}"""


def run_all(page: "Page") -> None:
    """Run all cells by the menu, as a learner does, and wait until they are done."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(_NO_CELL_WAITS, timeout=CELLS_TIMEOUT_MS)
    wait_idle(page)


def use_theme(page: "Page", name: str) -> None:
    """Choose JupyterLab's theme, "Light" or "Dark", by the menu; it stays for the next page."""
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    for label in ("Theme", f"JupyterLab {name}"):
        page.locator(".lm-Menu-itemLabel").get_by_text(label, exact=True).click()
    light = str(name == "Light").lower()
    page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{light}'")
    wait_idle(page)


def wait_until(true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Look again and again; AssertionError when it has not become true in time."""
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, f"not true within {timeout_s} s"
        time.sleep(0.02)


def notebook(*cells: str, before: str = "") -> str:
    """The text of a notebook with all panels and steppers imported, and these code cells.

    `before` is a text that stands above them.
    """
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    all_rooms = f"import sys\nsys.path.append({str(Path(__file__).parents[1])!r})\n"
    sources = (f"{all_rooms}from all_rooms import panels, steppers", *cells)
    made = [{"cell_type": "markdown", "metadata": {}, "source": before}] if before else []
    made += [code_cell(source) for source in sources]
    for place, cell in enumerate(made):
        cell["id"] = f"cell-{place}"
    metadata = {"kernelspec": kernel}
    return json.dumps({"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def code_cell(source: str, *outputs: dict[str, object]) -> dict[str, object]:
    """A cell of code as a notebook has it."""
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None}
    return {**cell, "source": source, "outputs": list(outputs)}


# Every code cell has a number in its prompt: neither [ ] nor [*].
_NO_CELL_WAITS = """() => {
    const prompts = [...document.querySelectorAll('.jp-CodeCell')]
        .filter(cell => cell.querySelector('.cm-content')?.textContent.trim())
        .map(cell => cell.querySelector('.jp-InputPrompt').textContent);
    return prompts.length > 0 && prompts.every(text => /\\[\\d+\\]/.test(text));
}"""


@contextmanager
def running_lab(root: Path, home: Path) -> Iterator[Lab]:
    """Start JupyterLab on a port of its own choice and end it with all its kernels.

    All it writes goes below `home`; what it says is in `home/lab.log`.
    """
    environment = _environment(home)
    token = secrets.token_hex(16)
    with (home / "lab.log").open("w") as log:
        process = subprocess.Popen(
            _command(root, token), env=environment, cwd=root, stdout=log, stderr=log
        )
    try:
        url = _address(process, home)
        try:
            yield Lab(root, url, token)
        finally:
            _ask_to_end(url, token)
    finally:
        _end(process, home)


def processes_of(home: Path) -> "list[psutil.Process]":
    """The kernels that still run with files below `home`, whoever their parent is now."""
    import psutil

    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(home) in word for word in process.info["cmdline"] or ())
    ]


def _environment(home: Path) -> dict[str, str]:
    folders = {
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "JUPYTER_CONFIG_DIR": home / "config",
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTERLAB_SETTINGS_DIR": home / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        "IPYTHONDIR": home / "ipython",
        "COURSE_HOME": home / "course",
    }
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    setting(home, "notebook-extension/tracker", _ALL_CELLS)
    return {**os.environ, **{name: str(folder) for name, folder in folders.items()}}


def setting(home: Path, name: str, values: dict[str, object]) -> None:
    """Write a setting as a learner makes it, before the lab of `home` runs."""
    file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))


def _command(root: Path, token: str) -> list[str]:
    return [
        *command(root, port=None, browser=False),  # what `course lab` runs
        f"--IdentityProvider.token={token}",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port_retries=100",  # Jupyter takes the first port that it can really open
    ]


def _address(process: subprocess.Popen[bytes], home: Path) -> str:
    """The URL that the server writes into its runtime file once it listens."""
    file = home / "runtime" / f"jpserver-{process.pid}.json"
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            return json.loads(file.read_text())["url"]
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.05)
    said = (home / "lab.log").read_text()[-3000:]
    raise RuntimeError(f"JupyterLab did not start within {START_TIMEOUT_S} s: {said}")


def _ask_to_end(url: str, token: str) -> None:
    """Ask the server to end its kernels and itself."""
    headers = {"Authorization": f"token {token}"}
    request = urllib.request.Request(f"{url}api/shutdown", method="POST", headers=headers)
    # What does not answer is killed afterwards.
    with suppress(OSError), urllib.request.urlopen(request, timeout=20):
        pass


def _end(process: subprocess.Popen[bytes], home: Path) -> None:
    """Wait for the server; kill it and its kernels if they do not end by themselves."""
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for kernel in processes_of(home):
        with suppress(ProcessLookupError):
            os.kill(kernel.pid, signal.SIGKILL)
