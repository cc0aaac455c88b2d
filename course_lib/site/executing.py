"""Runs notebooks for the site, and keeps what they showed, so that the next build is fast."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import course_lib
from course_lib.building.folders import about, load
from course_lib.problem import Problem
from course_lib.site.pages import ANSI

CELL_S = 600
_LIBRARY = Path(course_lib.__file__).parent
_NO_PART = {"site", "building", "lab", "doctor", "starting.py"}  # what no notebook shows


@cache
def digest(room: str) -> str:
    """A hash of the library and of one chapter's room, "ch07_ddp": of what its notebooks show."""
    found = hashlib.sha256()
    for path in sorted(_LIBRARY.rglob("*")):
        parts = path.relative_to(_LIBRARY).parts
        other = parts[0] == "chapters" and len(parts) > 2 and parts[1] != room
        if path.is_file() and "__pycache__" not in parts and parts[0] not in _NO_PART and not other:
            found.update(path.read_bytes())
    return found.hexdigest()


def run(notebook: Path, kept: Path, given: Path | None = None) -> Path:
    """The path of the notebook with its outputs: from `given`, or from `kept`, or run now.

    Raises Problem if a cell fails, or if the one in `given` is of another edition.
    """
    sources = about(load(notebook)).get("sources_sha", "")
    if given:
        return _same(given / notebook.name, sources)
    room = next((path.name for path in _LIBRARY.glob(f"chapters/ch{notebook.name[:2]}_*")), "")
    key = hashlib.sha256(f"{sources} {digest(room)}".encode()).hexdigest()[:16]
    path = kept / f"{notebook.stem}-{key}.ipynb"
    if not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        for old in kept.glob(f"{notebook.stem}-*.ipynb"):
            old.unlink()
        path.write_text(_executed(notebook), encoding="utf-8")
    return path


def _same(path: Path, sources: str) -> Path:
    if about(load(path)).get("sources_sha") != sources:
        raise Problem(f"{path} is missing or of another edition: run it again, or leave --executed")
    return path


def _executed(notebook: Path) -> str:
    """The JSON of the notebook after all its cells."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    data: Any = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    if not any(cell.cell_type == "code" for cell in data.cells):
        return notebook.read_text(encoding="utf-8")
    place = {"metadata": {"path": str(notebook.parent)}}
    try:
        NotebookClient(data, timeout=CELL_S, kernel_name="python3", resources=place).execute()
    except (CellExecutionError, CellTimeoutError) as wrong:
        said = ANSI.sub("", str(wrong)).strip().splitlines()[-1]
        raise Problem(f"{notebook.name} does not run: {said}: see it in `course lab`") from None
    return json.dumps(data, ensure_ascii=False)
