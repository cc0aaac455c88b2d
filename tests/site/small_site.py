"""A site of one notebook with all panels and steppers, for tests; it is run once for each."""

import json
import os
import re
from pathlib import Path

import pytest
from all_rooms import panels, steppers
from platformdirs import user_cache_dir

from course_lib.building.notebooks import sources_sha
from course_lib.problem import Problem
from course_lib.site import building, python

CACHE = Path(user_cache_dir("large-model-course"))
NEEDS_A_KERNEL = {"planner"}  # its arrays are numpy's


def cells() -> dict[str, str]:
    """{name: source} of a cell for each panel and stepper."""
    return {
        name: f"from {_package(found.__module__)} import {room}\n\n{room}.{name}()"
        for room, all_of_them in (("panels", panels), ("steppers", steppers))
        for name, found in vars(all_of_them).items()
    }


def _package(module: str) -> str:
    """Where a learner imports `panels` or `steppers` from."""
    return "course_lib" if module.startswith("course_lib.panels") else module.rpartition(".")[0]


def notebook(sources: dict[str, str]) -> str:
    """A notebook as `course build` writes it: a text, and these cells."""
    words = "# 1 All panels\n\n$x^2$ and [a chapter](01_steps_and_batches.ipynb)\n\n## 1.1 Moving"
    made = [{"cell_type": "markdown", "id": "text", "metadata": {}, "source": words}]
    code = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    made += [{**code, "id": name, "source": source} for name, source in sources.items()]
    about = {"chapter": "01_all", "folded": [], "sources_sha": sources_sha(made)}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"course": about, "kernelspec": kernel}
    return json.dumps({"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def pyodide() -> Path:
    """The pinned release, fetched once for all test runs; skips where npm cannot be asked."""
    try:
        python.tarball(None, CACHE)
    except Problem as problem:
        refuse = pytest.fail if os.environ.get("COURSE_PYODIDE") == "needed" else pytest.skip
        refuse(str(problem))
    return CACHE / python.TARBALL


def built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site in `folder`, without the reference, which has a test of its own."""
    monkeypatch.setattr(building, "_reference", lambda *_: None)
    root = folder / "root"
    (root / "notebooks").mkdir(parents=True)
    (root / "notebooks" / "01_all.ipynb").write_text(notebook(cells()), encoding="utf-8")
    wanted = building.Wanted(root, folder / "kept", None, pyodide())
    building.build(wanted, folder / "site", say=lambda _: None)
    return folder / "site"


def without_ids(page: str) -> str:
    """A panel's page without the numbers of its hatches, which count all that was drawn before."""
    return re.sub(r"\b(?:[\w-]+-)?d\d+-(h\d+)\b", r"\1", page)
