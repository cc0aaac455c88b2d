"""Finds the sections that teach a word: the glossary, the words of the notes, headings, exercises.

The tables are glossary.tsv and from_the_notes.tsv, beside the chapters.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from course_lib import chapters
from course_lib.problem import Problem
from course_lib.texts import HEADING, TEXTS, cells_of

FOLDER = Path(chapters.__file__).parent
GLOSSARY, NOTES = "glossary.tsv", "from_the_notes.tsv"
_COLUMNS = {
    GLOSSARY: ["chapter", "term", "中文", "meaning", "又作"],  # the last one is optional
    NOTES: ["note", "words of the note", "section", "the course's word, where it differs"],
}


class Term(NamedTuple):
    """One row: the chapter that introduces the term, its name in English and Chinese, its meaning.

    `also`: other Chinese names, used in the notes or elsewhere.
    """

    chapter: int
    english: str
    chinese: str
    meaning: str
    also: str = ""


class Words(NamedTuple):
    """Words of one of the notes, the sections that teach them, and the course's own word."""

    note: str
    words: str
    where: str
    ours: str = ""


def read_terms(folder: Path = FOLDER) -> list[Term]:
    """The rows of the glossary, in order. Raises Problem for an incomplete row."""
    rows = _rows(folder / GLOSSARY, required=4)
    return [Term(int(chapter), *rest) for chapter, *rest in rows]


def read_notes(folder: Path = FOLDER) -> list[Words]:
    """The words of the notes, in their order. Raises Problem for an incomplete row."""
    return [Words(*row) for row in _rows(folder / NOTES, required=3)]


def _rows(table: Path, required: int) -> list[list[str]]:
    columns = _COLUMNS[table.name]
    with open(table, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if rows[:1] != [columns]:
        names = ", ".join(columns)
        raise Problem(f"{table.name}:1: the columns must be {names}: correct the first line")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) > len(columns) or not all([*row, ""][:required]) or not row[0].isdigit():
            parts = ", ".join([*columns[:required], f"maybe {columns[required]}"])
            raise Problem(f"{table.name}:{number}: write {parts} between tabs")
    return rows[1:]


@dataclass(frozen=True)
class Section:
    """A section of a sitting: "9.4", its title, its notebook, and its words."""

    number: str
    title: str
    notebook: str
    text: str = field(repr=False)

    @property
    def link(self) -> str:
        """A link to it from another notebook."""
        anchor = f"{self.number}-{self.title}".replace(" ", "-").replace("`", "")
        return f"[{self.number}]({self.notebook}.ipynb#{anchor})"


def sections(texts: Iterable[Path]) -> Iterator[Section]:
    """The sections of texts, in order; what is before the first is left out."""
    for path in texts:
        own = [
            cell.source
            for cell in cells_of(path.read_text(encoding="utf-8"))
            if cell.kind == "markdown" and "exercise" not in cell.tags
        ]
        for part in re.split(r"^## ", "\n".join(own), flags=re.M)[1:]:
            title, _, rest = part.partition("\n")
            number, _, name = title.partition(" ")
            if re.fullmatch(r"\d+\.\d+", number):
                yield Section(number, name, path.stem, rest)


def teaching(term: Term, known: Iterable[Section]) -> Section | None:
    """The first section that gives the term's Chinese name."""
    own = [each for each in known if each.number.startswith(f"{term.chapter}.")]
    return next((each for each in own if term.chinese in each.text), None)


def taught(row: Words, known: list[Section]) -> Iterator[Section]:
    """The sections of a row, of two with one number the one that says a word of the note."""
    said = re.split(r"[,;/ ()→]+", f"{row.words} {row.ours}")
    words = [word for word in said if len(word) > 1]
    for number in re.findall(r"\d+\.\d+", row.where):
        own = [each for each in known if each.number == number]
        saying = [each for each in own if any(word in each.text for word in words)]
        yield from (saying or own)[:1]


def find(word: str) -> list[str]:
    """Lines on where `word`, English or Chinese, is taught. Raises ValueError if nowhere."""
    asked = word.casefold()
    known = list(sections(chapters.files(TEXTS).values()))
    lines = []
    for term in read_terms():
        if any(asked in name.casefold() for name in (term.english, term.chinese, term.also)):
            also = f", 又作 {term.also}" if term.also else ""
            section = teaching(term, known)
            where = _where(section) if section else f"chapter {term.chapter}"
            lines.append(f"{where}: {term.english} ({term.chinese}{also}): {term.meaning}")
    for row in read_notes():
        if asked in f"{row.words} {row.ours}".casefold():
            where = "; ".join(map(_where, taught(row, known))) or f"chapter {row.where}"
            lines.append(
                f"{where}: note {row.note}: {row.words}" + f" ({row.ours})" * bool(row.ours)
            )
    lines += [_where(each) for each in known if asked in each.title.casefold()]
    lines += [f"exercise {key} {title}" for key, title in _exercises() if asked in title.casefold()]
    often = sorted(known, key=lambda each: -each.text.casefold().count(asked))
    lines += [
        _where(each)
        for each in often[:5]
        if asked in each.text.casefold()
        and not any(line.startswith(_where(each)) for line in lines)
    ]
    if not lines:
        raise ValueError(f"no section says {word!r}: try a shorter word, in English or Chinese")
    return list(dict.fromkeys(lines))


def _where(section: Section) -> str:
    return f"{section.number} {section.title} [{section.notebook}]"


def _exercises() -> Iterator[tuple[str, str]]:
    for path in chapters.files(TEXTS).values():
        for cell in cells_of(path.read_text(encoding="utf-8")):
            if heading := HEADING.match(cell.source):
                yield heading[1], heading[3]
