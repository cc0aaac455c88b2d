"""Turns a chapter into the text of its notebooks, deterministically.

Cells tagged `exercise` go to exercises/ and solutions/, cells tagged `both` to all three folders,
all others to notebooks/ only. Each notebook begins and ends with a line of links.
"""

import ast
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from course_lib.building.chapters import BEGIN, END, GIVEN_BEGIN, GIVEN_END, Chapter
from course_lib.checking.texts import Cell

# `name = ...`, `a, b = ..., ...`, `x: int = ...` or a bare `...`: what a learner replaces.
_PLACEHOLDER = re.compile(
    r"^\s*(?:[\w.\[\], ]+(?::[^=]+)?=\s*)?[\[(]?\.\.\.(?:,\s*\.\.\.)*[\])]?\s*(?:#.*)?$"
)
_ROUTING_TAGS = {"exercise", "both"}
# The first line of a folded cell, which JupyterLab still shows.
FOLD = "# Run this first: imports for the cells below"
# The metadata that JupyterLab writes: if it has to add any, the notebook looks unsaved when opened.
# `course lab` adds the version of Python.
_PYTHON = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# Calls below a chapter's imports that set something up and show nothing.
_SETS_UP = {"launch.warm_up", "torch.set_num_threads"}


def unsolved(source: str) -> str:
    """Replace each solution by `...`, unless given code or a placeholder is there already."""
    kept: list[str] = []
    cutting = given = False
    for line in source.split("\n"):
        mark = line.strip()
        if mark == BEGIN:
            cutting = True
            if not given and not _asks(kept, line):
                kept.append(line[: len(line) - len(line.lstrip())] + "...")
        elif mark == END:
            cutting = False
        elif mark not in (GIVEN_BEGIN, GIVEN_END) and not cutting:
            kept.append(line)
        given = mark == GIVEN_END
    return "\n".join(kept)


def _asks(kept: list[str], mark: str) -> bool:
    """Whether there is a `...` to replace: in the line above, or, if not indented, in the cell."""
    if mark.startswith("###") and any("..." in line for line in kept):
        return True
    return bool(kept and _PLACEHOLDER.match(kept[-1]))


def solved(source: str) -> str:
    """Remove the marks, the given code, and the placeholders that a solution replaces."""
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


def render(chapter: Chapter, chapters: Sequence[Chapter]) -> dict[str, str]:
    """{folder: text} of the chapter's notebooks, with links to its neighbours in `chapters`.

    A chapter without exercises has only the one in notebooks/.
    """
    parts = {"notebooks": [_folded(cell) for cell in chapter.cells if "exercise" not in cell.tags]}
    if chapter.has_exercises:
        routed = [cell for cell in chapter.cells if _ROUTING_TAGS & set(cell.tags)]
        for folder, change in (("exercises", unsolved), ("solutions", solved)):
            cells = [replace(cell, source=change(cell.source)) for cell in routed]
            parts[folder] = [_title_cell(chapter, folder), *cells]
    texts = {}
    for folder, cells in parts.items():
        links = [cell for cell in [bar(chapters, chapter, folder)] if cell.source]
        linked = [
            replace(cell, source=with_papers(cell.source)) if cell.kind == "markdown" else cell
            for cell in cells
        ]
        texts[folder] = _notebook(chapter, [*links, *linked, *links])
    return texts


def _folded(cell: Cell) -> Cell:
    """Fold a cell that only imports and sets up, so that it shows one line until it is opened."""
    if cell.kind != "code" or "import" not in cell.source or not _only_prepares(cell.source):
        return cell
    folded = {**cell.metadata, "jupyter": {"source_hidden": True}}
    return replace(cell, source=f"{FOLD}\n{cell.source}", metadata=folded)


def _only_prepares(source: str) -> bool:
    """Whether a cell begins with an import and has only imports and calls in _SETS_UP."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # such as a line that begins with % or !
        return False
    imports = (ast.Import, ast.ImportFrom)
    return isinstance(statements[0] if statements else None, imports) and all(
        isinstance(each, imports) or _sets_up(each) for each in statements
    )


def _sets_up(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) in _SETS_UP


def _title_cell(chapter: Chapter, folder: str) -> Cell:
    name = f"{chapter.name}.ipynb"
    text = f"# {folder.capitalize()}: {chapter.title}\n\n"
    text += f"From the chapter [{chapter.title}](../notebooks/{name}).\n"
    if folder == "solutions":
        text += f"The unsolved ones are in [exercises/{name}](../exercises/{name}): try them first."
    else:
        text += f"""\
Replace each `...` with your answer and run the cell: `check` says whether it is right,
and why, or in which way it is wrong.
`hint("{chapter.number}.1")` tells a little more each time you call it.

Save it, then in a terminal `course check exercises/{name}` grades the whole file and
`course progress` shows what is done.
Worked answers are in [solutions/{name}](../solutions/{name})."""
    return Cell("markdown", text, 0)


def _notebook(chapter: Chapter, cells: list[Cell]) -> str:
    counts: Counter[str] = Counter()
    rendered = []
    for cell in cells:
        digest = hashlib.sha256(f"{cell.kind}\n{cell.source}".encode()).hexdigest()[:12]
        counts[digest] += 1
        repeat = f"-{counts[digest]}" if counts[digest] > 1 else ""
        rendered.append(_cell_json(cell, digest + repeat))
    data = {
        "cells": rendered,
        "metadata": {
            "course": {
                "chapter": chapter.name,
                "folded": [cell["id"] for cell in rendered if "jupyter" in cell["metadata"]],
                "sources_sha": sources_sha(rendered),
            },
            "kernelspec": _KERNEL,
            "language_info": _PYTHON,
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def sources_sha(cells: list[dict[str, Any]]) -> str:
    """A hash of the types and sources of cells, but not of their outputs and ids."""
    pairs = [(cell.get("cell_type"), "".join(cell.get("source", ""))) for cell in cells]
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:16]


def _cell_json(cell: Cell, cell_id: str) -> dict[str, Any]:
    metadata = {key: value for key, value in cell.metadata.items() if key != "tags"}
    if tags := [tag for tag in cell.tags if tag not in _ROUTING_TAGS]:
        metadata["tags"] = tags
    data = {"cell_type": cell.kind, "id": cell_id, "metadata": metadata}
    data["source"] = cell.source.splitlines(keepends=True)
    return data if cell.kind != "code" else {**data, "execution_count": None, "outputs": []}


# Code in backticks and whole links match first, so that their content is left alone.
_PAPER = re.compile(
    r"(?P<ticks>`+).+?(?P=ticks)(?!`)|\[[^\]]*\]\([^)]*\)|arXiv:(?P<number>\d{4}\.\d{4,5})",
    re.S,
)


def with_papers(text: str) -> str:
    """Turn each id such as arXiv:1910.02054 in Markdown into a link to that paper."""
    return _PAPER.sub(_linked, text)


def _linked(match: re.Match[str]) -> str:
    number = match["number"]
    return f"[{match[0]}](https://arxiv.org/abs/{number})" if number else match[0]


def bar(chapters: Sequence[Chapter], chapter: Chapter, folder: str) -> Cell:
    """A line of links: previous chapter, this one, its exercises, solutions, next chapter.

    `folder` is that of the notebook with the line; in it, the notebook itself is in bold.
    """
    index = [each.name for each in chapters].index(chapter.name)
    parts = []
    if index:
        parts.append(_link(f"← {chapters[index - 1].title}", chapters[index - 1], folder))
    if chapter.has_exercises:
        for target, words in _FOLDERS.items():
            here = target == folder
            parts.append(f"**{words}**" if here else _link(words, chapter, folder, target))
    if index + 1 < len(chapters):
        parts.append(_link(f"{chapters[index + 1].title} →", chapters[index + 1], folder))
    return Cell("markdown", " · ".join(parts), 0)


_FOLDERS = {"notebooks": "chapter", "exercises": "exercises", "solutions": "solutions"}


def _link(words: str, chapter: Chapter, source: str, target: str = "notebooks") -> str:
    path = "" if source == target else f"../{target}/"
    return f"[{words}]({path}{chapter.name}.ipynb)"
