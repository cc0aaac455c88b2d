"""Every build is typed into its exercise in JupyterLab, kept, and trained on: the learner's path.

What is typed is the course's own version, as a cell that stands alone. Slow: run by `-m slow`.
"""

import ast
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from real_lab import chromium, running_lab

from course_lib.lab.chromium import browser_path
from course_lib.mine import PARTS
from course_lib.mine.cells import sources_with_used

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not browser_path(), reason="needs chromium"),
]
LIMIT_MS = 60_000


def learners_cell(part):
    """The cell as a learner has it in the end: imports, definitions, the check."""
    imports, definitions = [], []
    homes = {}
    for name in part.names:
        thing = getattr(importlib.import_module(part.home), name)
        homes.setdefault(thing.__module__, []).append(name)
    for home, names in homes.items():
        module = importlib.import_module(home)
        text = inspect.getsource(module)
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                line = ast.get_source_segment(text, node)
                imports += [] if line in imports else [line]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                definitions.append(ast.get_source_segment(text, node))
        definitions += reversed(sources_with_decorators(module, names, part.given))
        imports += [f"from {home} import {name}" for name in part.given]
    call = f'check("{part.build}", [{", ".join(part.names)}])'
    return "\n\n\n".join(
        ["\n".join(["from course_lib import check", *imports]), *definitions, call]
    )


def sources_with_decorators(module, names, given):
    """Definitions and what they use, each from its first decorator on; not what is given."""
    text = inspect.getsource(module).splitlines()
    nodes = {
        node.name: node
        for node in ast.parse("\n".join(text)).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    used = {
        ast.parse(source.lstrip("@")).body[0].name: 0
        for source in sources_with_used(module, names, given).values()
    }
    found = []
    for name in used:
        node = nodes[name]
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        found.append((first, "\n".join(text[first - 1 : node.end_lineno])))
    return [source for _, source in sorted(found, reverse=True)]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    home = tmp_path_factory.mktemp("lab")
    clone = home / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    with running_lab(clone, home) as lab, chromium() as browser:
        page = lab.new_page(browser)
        page.lab = lab
        page.home = home
        yield page


def build_by_keyboard(page, part):
    """Open the exercises, replace the skeleton by typing, run it; what the cell says."""
    (notebook,) = (page.lab.root / "exercises").glob(f"{int(part.build.split('.')[0]):02}_*.ipynb")
    page.lab.open(page, f"exercises/{notebook.name}")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    call = f'check("{part.build}"'  # an editor shows only the lines on the screen, so by number
    place = next(n for n, cell in enumerate(cells) if call in "".join(cell["source"]))
    cell = page.locator(".jp-Notebook .jp-Cell").nth(place)
    cell.scroll_into_view_if_needed()
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(learners_cell(part))
    page.keyboard.press("Shift+Enter")
    said = cell.locator(".jp-OutputArea-output", has_text=part.build)
    said.first.wait_for(timeout=LIMIT_MS)
    return cell.locator(".jp-OutputArea").inner_text()


@pytest.mark.parametrize("part", PARTS, ids=[part.file for part in PARTS])
def test_a_build_is_typed_checked_and_kept(part, page):
    said = build_by_keyboard(page, part)
    assert f"Right {part.build}" in said, said
    assert f"{part.file}.py: what comes later runs on it" in said, said


def test_the_mesh_trains_on_what_was_built(page):
    environment = {**os.environ, "COURSE_HOME": str(page.home / "course")}
    command = [sys.executable, "-m", "course_lib", "demo", "three_d", "--ranks", "8"]
    done = subprocess.run(
        [*command, "--parts", "mine"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "on your parts" in done.stdout and "the course's: none" in done.stdout
    report = subprocess.run(
        [sys.executable, "-m", "course_lib", "mine"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert f"{len(PARTS)} of {len(PARTS)} parts are yours" in report.stdout
    shutil.copytree(page.home / "course" / "mine", page.home / "seen")
