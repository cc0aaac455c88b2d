"""Turns a chapter into the text of its notebooks, the same bytes each time.

Cells tagged `exercise` go to exercises/ and solutions/, cells tagged `both` to all three folders,
the others to notebooks/ only.
"""

import hashlib
import json
import re
from collections import Counter
from typing import Any

from course_lib.building.chapters import BEGIN, END, GIVEN_BEGIN, GIVEN_END, Cell, Chapter
from course_lib.building.edits import sources_sha

# `name = ...`, `a, b = ..., ...`, `x: int = ...` or a bare `...`: what a learner replaces.
_PLACEHOLDER = re.compile(
    r"^\s*(?:[\w.\[\], ]+(?::[^=]+)?=\s*)?[\[(]?\.\.\.(?:,\s*\.\.\.)*[\])]?\s*(?:#.*)?$"
)
_ROUTING_TAGS = {"exercise", "both"}


def unsolved(source: str) -> str:
    """The source without solutions: `...` in their place unless something given stands there."""
    kept: list[str] = []
    cutting = given = False
    for line in source.split("\n"):
        mark = line.strip()
        if mark == BEGIN:
            cutting = True
            if not given and not (kept and _PLACEHOLDER.match(kept[-1])):
                kept.append(line[: len(line) - len(line.lstrip())] + "...")
        elif mark == END:
            cutting = False
        elif mark not in (GIVEN_BEGIN, GIVEN_END) and not cutting:
            kept.append(line)
        given = mark == GIVEN_END
    return "\n".join(kept)


def solved(source: str) -> str:
    """The source without marks, without what is given, and without placeholders it replaces."""
    kept: list[str] = []
    given = False
    for line in source.split("\n"):
        mark = line.strip()
        if mark == BEGIN:
            while kept and _PLACEHOLDER.match(kept[-1]):
                kept.pop()
        elif mark in (GIVEN_BEGIN, GIVEN_END):
            given = mark == GIVEN_BEGIN
        elif mark != END and not given:
            kept.append(line)
    return "\n".join(kept)


def render(chapter: Chapter) -> dict[str, str]:
    """Folder name → notebook text. A chapter without exercises has notebooks/ only."""
    texts = {
        "notebooks": _notebook(chapter, [c for c in chapter.cells if "exercise" not in c.tags])
    }
    if any("exercise" in cell.tags for cell in chapter.cells):
        chosen = [cell for cell in chapter.cells if _ROUTING_TAGS & set(cell.tags)]
        for folder, change in (("exercises", unsolved), ("solutions", solved)):
            cells = [Cell(c.kind, change(c.source), c.line, c.metadata) for c in chosen]
            texts[folder] = _notebook(chapter, [_title_cell(chapter, folder), *cells])
    return texts


def _title_cell(chapter: Chapter, folder: str) -> Cell:
    name = f"{chapter.name}.ipynb"
    lines = [f"# {folder.capitalize()}: {chapter.title}", ""]
    lines.append(f"From the chapter [{chapter.title}](../notebooks/{name}).")
    if folder == "solutions":
        lines.append(
            f"The unsolved ones are in [exercises/{name}](../exercises/{name}): try them first."
        )
        return Cell("markdown", "\n".join(lines), 0)
    lines += [
        "Replace each `...` by your answer and run the cell: `check` prints one line,",
        "`[todo]`, `[fail]` with what it expected and why, or `[pass]`.",
        f'`hint("{chapter.number}.1")` tells a little more each time you call it.',
        "",
        f"In a terminal, `course check exercises/{name}` grades the whole notebook and",
        "`course progress` shows what is done.",
        f"Worked answers are in [solutions/{name}](../solutions/{name}).",
    ]
    return Cell("markdown", "\n".join(lines), 0)


def _notebook(chapter: Chapter, cells: list[Cell]) -> str:
    counts: Counter[str] = Counter()
    made = []
    for cell in cells:
        digest = hashlib.sha256(f"{cell.kind}\n{cell.source}".encode()).hexdigest()[:12]
        counts[digest] += 1
        repeat = f"-{counts[digest]}" if counts[digest] > 1 else ""
        made.append(_cell_json(cell, digest + repeat))
    data = {
        "cells": made,
        "metadata": {
            "course": {"chapter": chapter.name, "sources_sha": sources_sha(made)},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _cell_json(cell: Cell, cell_id: str) -> dict[str, Any]:
    # jupytext keeps its own notes on blank lines in the metadata: they are no part of a notebook.
    kept = cell.metadata.items()
    metadata = {key: value for key, value in kept if key != "tags" and "lines_to" not in key}
    if tags := [tag for tag in cell.tags if tag not in _ROUTING_TAGS]:
        metadata["tags"] = tags
    made = {"cell_type": cell.kind, "id": cell_id, "metadata": metadata}
    made["source"] = cell.source.splitlines(keepends=True)
    return made if cell.kind != "code" else {**made, "execution_count": None, "outputs": []}
