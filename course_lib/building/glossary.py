"""The glossary: one table, glossary.tsv, becomes notebooks/glossary.ipynb."""

import csv
from dataclasses import dataclass
from pathlib import Path

from course_lib.building.chapters import ROOMS, Chapter
from course_lib.checking.texts import Cell
from course_lib.problem import Problem

TABLE = ROOMS / "glossary.tsv"
_COLUMNS = ["chapter", "term", "中文", "meaning", "又作"]  # the last one where there is one


@dataclass(frozen=True)
class Term:
    """One row: the chapter that first uses the term, its name in English and Chinese.

    `also`: what the notes, or others, call it in Chinese.
    """

    chapter: int
    english: str
    chinese: str
    meaning: str
    also: str = ""


def read_terms(root: Path) -> list[Term]:
    """The rows of the table in its order. Raises Problem for a row that is not complete."""
    with open(root / TABLE, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if rows[:1] != [_COLUMNS]:
        raise Problem(
            f"{TABLE}:1: the columns must be {', '.join(_COLUMNS)}: correct the first line"
        )
    for number, row in enumerate(rows[1:], start=2):
        complete = len(row) in (len(_COLUMNS) - 1, len(_COLUMNS)) and all(row)
        if not complete or not row[0].isdigit():
            raise Problem(
                f"{TABLE}:{number}: write chapter, term, 中文, meaning, maybe 又作 between tabs"
            )
    return [Term(int(chapter), *rest) for chapter, *rest in rows[1:]]


def glossary(root: Path, names: dict[int, str]) -> Chapter:
    """The page as a chapter of one cell; `names` are the chapters' notebooks by number."""
    lines = [
        "# Glossary (术语表)",
        "",
        "The terms of the course, with the chapter that explains them first.",
        "",
        "| term | 中文 | meaning | chapter |",
        "|---|---|---|---|",
    ]
    for term in sorted(read_terms(root), key=lambda term: term.english.casefold()):
        name = names.get(term.chapter)
        link = f"[{term.chapter}]({name}.ipynb)" if name else str(term.chapter)
        chinese = f"{term.chinese} (又作 {term.also})" if term.also else term.chinese
        lines.append(f"| {term.english} | {chinese} | {term.meaning} | {link} |")
    return Chapter(root / ROOMS / "glossary.py", (Cell("markdown", "\n".join(lines), 1),))
