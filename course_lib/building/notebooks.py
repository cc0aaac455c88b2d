"""Turns a chapter's texts into the JSON of notebooks, deterministically.

Each text becomes a notebook in notebooks/. Its cells tagged `exercise` go to the chapter's one file
in exercises/ and in solutions/ instead. A notebook begins and ends with a line of links, and says
how long it takes.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from course_lib.building.chapters import Chapter, Text
from course_lib.outline import TITLES
from course_lib.problem import Problem
from course_lib.sittings import Sitting, Task, deeper_parts, reading_minutes
from course_lib.texts import HEADING, Cell, folds, solved, unsolved

_OUR_TAGS = {"exercise", "drawing"}
# The first line of a folded cell, which JupyterLab still shows.
FOLD = "# Run this first: imports for the cells below"
FIRST_LINE = {
    "imports": FOLD,
    "drawing": "# Draws what is below",
    "answer": "# Compares with your prediction: run this, and unfold it afterwards",
}
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


def render(chapter: Chapter, links: "Links") -> dict[str, str]:
    """{path: text} of a chapter's notebooks, such as "notebooks/09_2_fsdp2_in_practice.ipynb"."""
    found = {}
    for text in chapter.texts:
        cells = [_folded(cell) for cell in text.cells if "exercise" not in cell.tags]
        if cells:
            cells = _with_plan(_with_deeper(cells, text.sitting), text.sitting, chapter)
            own = [*cells, *_now_you(text.sitting, chapter)]
            found[f"notebooks/{text.name}.ipynb"] = links.notebook(own, text, chapter)
    for folder, change in (("exercises", unsolved), ("solutions", solved)):
        if chapter.has_exercises:
            cells = [_title_cell(chapter, folder)]
            for text in chapter.texts:
                cells += _exercise_cells(text, chapter, change)
            found[f"{folder}/{chapter.name}.ipynb"] = links.notebook(cells, folder, chapter)
    return found


def _exercise_cells(text: Text, chapter: Chapter, change: Callable[[str], str]) -> list[Cell]:
    """The cells of a text for exercises/ or solutions/, under its title if there are several."""
    routed = [cell for cell in text.cells if "exercise" in cell.tags]
    tasks = {task.id: task for task in text.sitting.exercises}
    cells = [_rated(replace(cell, source=change(cell.source)), tasks) for cell in routed]
    if cells and sum(each.has_exercises for each in chapter.texts) > 1:
        title = Cell("markdown", f"## {text.sitting.title}", 0)
        cells.insert(1 if cells[0].kind == "code" else 0, title)
    return cells


def _rated(cell: Cell, tasks: dict[str, Task]) -> Cell:
    """An exercise's heading with a line on its importance, difficulty and time below."""
    heading = HEADING.match(cell.source) if cell.kind == "markdown" else None
    if not heading or heading[1] not in tasks:
        return cell
    head, _, rest = cell.source.partition("\n")
    return replace(cell, source=f"{head}\n\n*{_rating(tasks[heading[1]])}*\n{rest}")


def _rating(of: Task | Sitting) -> str:
    parts = [f"importance {of.importance} of 5", f"difficulty {of.difficulty} of 5"]
    parts += ["better in a group"] * of.group
    if isinstance(of, Task):
        parts.append(f"about {rounded(of.minutes)} min")
    return " · ".join(parts)


def rounded(minutes: float) -> int:
    """Minutes to the next five."""
    return max(5, 5 * round(minutes / 5))


def _with_plan(cells: list[Cell], sitting: Sitting, chapter: Chapter) -> list[Cell]:
    """The first markdown cell with a line below its title: place, time, importance."""
    thread = [text.sitting for text in chapter.texts if not text.sitting.is_deeper]
    place = f"Chapter {chapter.number}, {TITLES.get(chapter.number, sitting.title)}"
    if sitting.is_deeper:
        place += ": deeper, optional"
    elif len(thread) > 1:
        place += f": sitting {thread.index(sitting) + 1} of {len(thread)}"
    minutes = f"about {rounded(sitting.reading)} min"
    if sitting.folded:
        minutes += f" ({rounded(sitting.folded)} more for the folded parts)"
    head, _, rest = cells[0].source.partition("\n")
    line = f"*{place} · {minutes} · {_rating(sitting)}*"
    return [replace(cells[0], source=f"{head}\n\n{line}\n{rest}"), *cells[1:]]


def _with_deeper(cells: list[Cell], sitting: Sitting) -> list[Cell]:
    """Fold the parts that a first reader can leave out, and say so in their headings."""
    minutes = {
        part[0].line: rounded(reading_minutes(part, sitting.difficulty))
        for part in deeper_parts(cells)
    }
    found = []
    for cell in cells:
        if cell.line in minutes:
            head, _, rest = cell.source.partition("\n")
            folded = {**cell.metadata, "jp-MarkdownHeadingCollapsed": True}
            head = f"{head} · optional · {minutes[cell.line]} min"
            cell = replace(cell, source=f"{head}\n{rest}".rstrip("\n"), metadata=folded)
        found.append(cell)
    return found


def _now_you(sitting: Sitting, chapter: Chapter) -> list[Cell]:
    """A cell that lists the exercises of a sitting; none if it has none."""
    if not sitting.exercises:
        return []
    lines = [
        f"**Now you:** open [the exercises](../exercises/{chapter.name}.ipynb).",
        "",
        "| exercise | importance | difficulty | about |",
        "|---|---|---|---|",
    ]
    for task in sitting.exercises:
        title = f"{task.id} {task.kind.capitalize()}: {task.title}"
        times = f"{rounded(task.minutes)} min"
        lines.append(f"| {title} | {task.importance} of 5 | {task.difficulty} of 5 | {times} |")
    return [Cell("markdown", "\n".join(lines), 0)]


def _folded(cell: Cell) -> Cell:
    """Fold a cell that prepares, draws, or holds an answer, so that it shows one line."""
    if not (what := folds(cell)):
        return cell
    metadata = {**cell.metadata, "jupyter": {"source_hidden": True}}
    return replace(cell, source=f"{FIRST_LINE[what]}\n{cell.source}", metadata=metadata)


def _title_cell(chapter: Chapter, folder: str) -> Cell:
    name = f"{chapter.name}.ipynb"
    title = TITLES.get(chapter.number, chapter.texts[0].title)
    first = next(task for text in chapter.texts for task in text.sitting.exercises)
    text = f"# {folder.capitalize()}: {chapter.number} {title}\n\n"
    if folder == "solutions":
        text += f"The unsolved ones are in [exercises/{name}](../exercises/{name}): try them first."
    else:
        text += f"""\
Replace each `...` with your answer and run the cell: `check` says whether it is right,
and why, or in which way it is wrong.
`hint("{first.id}")` tells a little more each time you call it.

Save it, then in a terminal `course check exercises/{name}` grades the whole file and
`course progress` shows what is done.
Worked answers are in [solutions/{name}](../solutions/{name})."""
    return Cell("markdown", text, 0)


def _notebook(name: str, cells: list[Cell]) -> str:
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
                "chapter": name,
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
    if tags := [tag for tag in cell.tags if tag not in _OUR_TAGS]:
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


def _with_papers(cell: Cell) -> Cell:
    return replace(cell, source=with_papers(cell.source)) if cell.kind == "markdown" else cell


def _linked(match: re.Match[str]) -> str:
    number = match["number"]
    return f"[{match[0]}](https://arxiv.org/abs/{number})" if number else match[0]


class Links:
    """The links between the notebooks of `chapters`."""

    def __init__(self, chapters: Sequence[Chapter]) -> None:
        self.texts = [text for chapter in chapters for text in chapter.texts]
        self.thread = [text for text in self.texts if not text.sitting.is_deeper]
        self.names = {f"{each.number:02}": each.texts[0].name for each in chapters}
        self.names |= {text.name[:4]: text.name for text in self.texts if text.name[3].isdigit()}

    def notebook(self, cells: list[Cell], here: Text | str, chapter: Chapter) -> str:
        """The JSON of a notebook with these cells; `here`: its text, "exercises" or "solutions"."""
        bar = self.bar(here, chapter)
        ends = [bar] if bar.source else []
        name = here.name if isinstance(here, Text) else chapter.name
        linked = [self._resolved(_with_papers(cell)) for cell in cells]
        return _notebook(name, [*ends, *linked, *ends])

    def page(self, page: Text) -> str:
        """The JSON of a page that belongs to no chapter, with a link to the first notebook."""
        first = self.thread[0]
        bar = Cell("markdown", _link(f"← {first.title}", first.name, "notebooks"), 0)
        return _notebook(page.name, [bar, *map(_with_papers, page.cells), bar])

    def _resolved(self, cell: Cell) -> Cell:
        """Targets such as (09) and (09_2) become the names of notebooks."""
        if cell.kind != "markdown":
            return cell

        def named(match: re.Match[str]) -> str:
            if match[1] not in self.names:
                raise Problem(f"a link leads to {match[1]}, which no text is called: correct it")
            return f"]({self.names[match[1]]}.ipynb)"

        return replace(cell, source=re.sub(r"\]\((\d\d(?:_\d)?)\)", named, cell.source))

    def bar(self, here: Text | str, chapter: Chapter) -> Cell:
        """A line of links: previous sitting, those of this chapter, exercises, solutions, next one.

        The notebook with the line is in bold.
        """
        own = [text for text in chapter.texts if text in self.thread]
        first = self.thread.index(here if here in own else own[0])
        last = self.thread.index(here if here in own else own[-1])
        folder = here if isinstance(here, str) else "notebooks"
        parts = [_link(f"← {text.title}", text.name, folder) for text in self.thread[:first][-1:]]
        for text in chapter.texts if chapter.has_exercises or len(chapter.texts) > 1 else ():
            words = _short(text, chapter)
            parts.append(f"**{words}**" if text is here else _link(words, text.name, folder))
        for target in ("exercises", "solutions") if chapter.has_exercises else ():
            same = target == here
            parts.append(f"**{target}**" if same else _link(target, chapter.name, folder, target))
        parts += [
            _link(f"{text.title} →", text.name, folder) for text in self.thread[last + 1 :][:1]
        ]
        return Cell("markdown", " · ".join(parts), 0)


def _short(text: Text, chapter: Chapter) -> str:
    if len(chapter.texts) == 1:
        return "chapter"
    return "deeper" if text.sitting.is_deeper else text.sitting.number


def _link(words: str, name: str, source: str, target: str = "notebooks") -> str:
    path = "" if source == target else f"../{target}/"
    return f"[{words}]({path}{name}.ipynb)"
