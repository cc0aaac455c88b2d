"""Compares and writes notebooks/, exercises/ and solutions/.

Nothing a learner wrote is overwritten: each notebook stores a hash of its own sources, and one
whose sources no longer match it stays; the new version is then written beside it.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.building.chapters import ROOMS, read_chapters
from course_lib.building.exercises import with_exercises
from course_lib.building.glossary import TABLE, glossary
from course_lib.building.notebooks import render, sources_sha


def load(path: Path) -> dict[str, Any]:
    """The notebook at path; an empty one when it cannot be read as one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    cells = data.get("cells") if isinstance(data, dict) else None
    return data if isinstance(cells, list) and all(map(_is_cell, cells)) else {}


def _is_cell(cell: object) -> bool:
    source = cell.get("source", "") if isinstance(cell, dict) else None
    lines = [source] if isinstance(source, str) else source
    return isinstance(lines, list) and all(isinstance(line, str) for line in lines)


def about(notebook: dict[str, Any]) -> dict[str, Any]:
    """What `course build` noted in the notebook: `chapter`, `folded`, `sources_sha`; else empty."""
    metadata = notebook.get("metadata", {})
    course = metadata.get("course", {}) if isinstance(metadata, dict) else {}
    return course if isinstance(course, dict) else {}


def stored_sha(notebook: dict[str, Any]) -> str:
    """The hash of the sources when the notebook was built; empty when there is none."""
    return str(about(notebook).get("sources_sha", ""))


def untouched(notebook: dict[str, Any]) -> bool:
    """True when nobody edited the sources since the notebook was built; it may have been run."""
    return bool(notebook) and stored_sha(notebook) == sources_sha(notebook["cells"])


FOLDERS = ("notebooks", "exercises", "solutions")
BUILD = "run `course build`"


@dataclass(frozen=True)
class Outcome:
    """What happened to one file; state is a word such as written or kept, or a fault's name."""

    path: Path
    state: str
    text: str = ""

    def line(self, root: Path) -> str:
        """The outcome on one line, its path below `root`."""
        tail = f": {self.text}" if self.text else ""
        return f"{self.state:<8} {self.path.relative_to(root)}{tail}"


def _same_cells(notebook: dict[str, Any], fresh: dict[str, Any]) -> bool:
    def key(cell: dict[str, Any]) -> tuple[Any, ...]:
        tags = cell.get("metadata", {}).get("tags")
        return (cell.get("id"), cell.get("cell_type"), "".join(cell.get("source", "")), tags)

    # A reader who opens a folded cell changes the cell, and not what is noted about the notebook.
    same_notes = about(notebook) == about(fresh)
    return same_notes and list(map(key, notebook["cells"])) == list(map(key, fresh["cells"]))


def expected(root: Path) -> dict[Path, str]:
    """Every notebook that the chapters and the glossary give, with its text."""
    chapters = [with_exercises(chapter, root) for chapter in read_chapters(root)]
    if (root / TABLE).exists():
        chapters.append(glossary(root, {chapter.number: chapter.name for chapter in chapters}))
    return {
        root / folder / f"{chapter.name}.ipynb": text
        for chapter in chapters
        for folder, text in render(chapter, chapters).items()
    }


def _surplus(root: Path, wanted: dict[Path, str]) -> list[Path]:
    """Notebooks that an earlier build wrote and no chapter asks for; a learner's own never."""
    found = [path for folder in FOLDERS for path in sorted((root / folder).glob("*.ipynb"))]
    return [path for path in found if path not in wanted and _written_for(path) == path.stem]


def _written_for(path: Path) -> str:
    return str(about(load(path)).get("chapter", ""))


def compare(root: Path) -> list[Outcome]:
    """The faults of the three folders without writing: missing, stale, edited and surplus files.

    Notebooks that were only run are no fault. Raises Problem when a chapter breaks a rule.
    """
    wanted = expected(root)
    faults = []
    for path, text in wanted.items():
        if not path.exists():
            faults.append(Outcome(path, "missing", BUILD))
            continue
        notebook = load(path)
        if not untouched(notebook):
            faults.append(Outcome(path, "edited", _undo(path)))
        elif not _same_cells(notebook, json.loads(text)):
            faults.append(Outcome(path, "stale", BUILD))
    return faults + [_fault_of_surplus(path) for path in _surplus(root, wanted)]


def _undo(path: Path) -> str:
    """What to do about an edited notebook, which `course build` alone would keep as it is."""
    source = TABLE.name if path.stem == TABLE.stem else f"ch{path.stem}/{path.stem}.py"
    return f"move the edit to {ROOMS / source}, delete this notebook, then {BUILD}"


def _fault_of_surplus(path: Path) -> Outcome:
    # As with the expected notebooks, `course build` removes only what nobody edited.
    remedy = BUILD if untouched(load(path)) else "delete or rename what you edited"
    return Outcome(path, "surplus", f"no chapter asks for it: {remedy}")


def build(root: Path) -> list[Outcome]:
    """Write what is missing or stale; leave every notebook whose sources a learner edited.

    Raises Problem when a chapter breaks a rule.
    """
    wanted = expected(root)
    outcomes = [_place(path, text) for path, text in wanted.items()]
    for path in _surplus(root, wanted):
        if untouched(load(path)):
            path.unlink()
            outcomes.append(Outcome(path, "removed", "no chapter asks for it"))
        else:
            outcomes.append(Outcome(path, "kept", "no chapter asks for it, but you edited it"))
    return outcomes


def _place(path: Path, text: str) -> Outcome:
    if not path.exists():
        _write(path, text)
        return Outcome(path, "written")
    notebook, fresh = load(path), json.loads(text)
    if untouched(notebook):
        if _same_cells(notebook, fresh):
            return Outcome(path, "current")
        _write(path, text)
        return Outcome(path, "written")
    if stored_sha(notebook) == stored_sha(fresh):
        return Outcome(path, "kept", "you edited it, and its chapter has not changed")
    beside = _beside(path)
    if not (beside.exists() and _same_cells(load(beside), fresh)):
        _write(beside, text)
    return Outcome(path, "kept", f"you edited it; the new version is {beside.name} beside it")


def _beside(path: Path) -> Path:
    """NN_name.new.ipynb, or the first numbered one that nobody edited."""
    number = 1
    while True:
        target = path.with_suffix(".new.ipynb" if number == 1 else f".{number}.new.ipynb")
        if not target.exists() or untouched(load(target)):
            return target
        number += 1


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_bytes(text.encode("utf-8"))
    os.replace(scratch, path)
