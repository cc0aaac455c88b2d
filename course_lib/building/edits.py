"""Whether a notebook was edited since it was built: each stores a hash of its own sources."""

import hashlib
import json
from pathlib import Path
from typing import Any


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


def sources_sha(cells: list[dict[str, Any]]) -> str:
    """A hash of the types and sources of cells; outputs and ids do not count."""
    pairs = [(cell.get("cell_type"), "".join(cell.get("source", ""))) for cell in cells]
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:16]


def untouched(notebook: dict[str, Any]) -> bool:
    """True when nobody edited the sources since the notebook was built; it may have been run."""
    return bool(notebook) and stored_sha(notebook) == sources_sha(notebook["cells"])
