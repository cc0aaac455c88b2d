"""Compares and writes notebooks/, exercises/ and solutions/.

No user's edit is overwritten: each notebook stores a hash of its own sources, and a notebook whose
sources no longer match its hash is left as it is.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.building.chapters import ROOMS, read_chapters, with_exercises
from course_lib.building.notebooks import Links, render, sources_sha
from course_lib.building.pages import pages


def load(path: Path) -> dict[str, Any]:
    """The notebook at `path`; {} if `course build` has not written it."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        sources_sha(data["cells"])
        return data if "sources_sha" in about(data) else {}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}


def about(notebook: dict[str, Any]) -> dict[str, Any]:
    """The metadata that `course build` wrote: `chapter`, `folded`, `sources_sha`; else {}."""
    metadata: dict[str, Any] = notebook["metadata"]["course"] if notebook else {}
    return metadata


def untouched(notebook: dict[str, Any]) -> bool:
    """Whether the sources are unedited since the notebook was built; it may have been run."""
    return bool(notebook) and about(notebook)["sources_sha"] == sources_sha(notebook["cells"])


FOLDERS = ("notebooks", "exercises", "solutions")
BUILD = "run `course build`"


@dataclass(frozen=True)
class Outcome:
    """The outcome for one file: `state` is "written", "kept", …, or a fault such as "stale"."""

    path: Path
    state: str
    text: str = ""

    def line(self, root: Path) -> str:
        """The outcome on one line, with the path relative to `root`."""
        tail = f": {self.text}" if self.text else ""
        return f"{self.state:<8} {self.path.relative_to(root)}{tail}"


def _same_cells(notebook: dict[str, Any], fresh: dict[str, Any]) -> bool:
    def key(cell: dict[str, Any]) -> tuple[Any, ...]:
        tags = cell.get("metadata", {}).get("tags")
        return (cell.get("id"), cell.get("cell_type"), "".join(cell.get("source", "")), tags)

    # Unfolding a cell changes the cell's own metadata, but not the notebook's.
    same_metadata = about(notebook) == about(fresh)
    return same_metadata and list(map(key, notebook["cells"])) == list(map(key, fresh["cells"]))


def expected(root: Path) -> dict[Path, str]:
    """{path: text} of every notebook built from the chapters and the tables."""
    chapters = [with_exercises(chapter, root) for chapter in read_chapters(root)]
    links = Links(chapters)
    found = {
        root / path: text for chapter in chapters for path, text in render(chapter, links).items()
    }
    for page in pages(root, chapters):
        found[root / "notebooks" / f"{page.name}.ipynb"] = links.page(page)
    return found


def _examined(root: Path) -> Iterator[tuple[Outcome, str]]:
    """The state and expected text of each notebook that is wanted or left by an earlier build."""
    wanted = expected(root)
    for path, text in wanted.items():
        notebook = load(path)
        if not path.exists():
            yield Outcome(path, "missing", BUILD), text
        elif not untouched(notebook):
            source = _source(root, path.stem)
            remedy = f"move the edit to {source}, delete this notebook, then {BUILD}"
            yield Outcome(path, "edited", remedy), text
        elif _same_cells(notebook, json.loads(text)):
            yield Outcome(path, "current"), text
        else:
            yield Outcome(path, "stale", BUILD), text
    existing = [path for folder in FOLDERS for path in sorted((root / folder).glob("*.ipynb"))]
    for path in existing:
        # Not the learner's own notebooks, whose metadata do not have a chapter of their name.
        if path not in wanted and about(load(path)).get("chapter") == path.stem:
            remedy = BUILD if untouched(load(path)) else "delete or rename what you edited"
            yield Outcome(path, "surplus", f"no chapter asks for it: {remedy}"), ""


def _source(root: Path, name: str) -> Path:
    """What a notebook is built from: a text, a table, or for exercises a folder of texts."""
    rooms = root / ROOMS
    found = [*rooms.glob(f"{name}.tsv"), *rooms.glob(f"ch*/{name}.py"), rooms / f"ch{name}"]
    return found[0].relative_to(root)


def compare(root: Path) -> list[Outcome]:
    """Find missing, stale, edited and surplus files in the three folders; write nothing.

    A notebook that was only run is not a fault. Raises Problem if a chapter breaks a rule.
    """
    return [outcome for outcome, _ in _examined(root) if outcome.state != "current"]


def build(root: Path) -> list[Outcome]:
    """Write missing or stale notebooks; leave those whose sources were edited.

    Raises Problem if a chapter breaks a rule.
    """
    outcomes = []
    for outcome, text in list(_examined(root)):
        path = outcome.path
        if outcome.state in ("missing", "stale"):
            write(path, text.encode())
            outcome = Outcome(path, "written")
        elif outcome.state == "surplus" and untouched(load(path)):
            path.unlink()
            outcome = Outcome(path, "removed", "no chapter asks for it")
        elif outcome.state != "current":
            outcome = Outcome(path, "kept", outcome.text)
        outcomes.append(outcome)
    return outcomes


def write(path: Path, content: bytes) -> None:
    """Write a file by renaming, so that nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
