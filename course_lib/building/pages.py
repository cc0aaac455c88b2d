"""The two pages that are built from tables: the glossary, and the words of the notes."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from course_lib.building.chapters import ROOMS, Chapter, Text
from course_lib.finding import (
    GLOSSARY,
    NOTES,
    Section,
    read_notes,
    read_terms,
    sections,
    taught,
    teaching,
)
from course_lib.texts import Cell

_NUMBER = re.compile(r"(?<![\d.])\d{1,2}(?:\.\d{1,2})?(?![\d.])")


def pages(root: Path, chapters: Sequence[Chapter]) -> list[Text]:
    """The glossary and "From the notes", each a text of one cell, where there is such a table."""
    known = list(sections(text.path for chapter in chapters for text in chapter.texts))
    names = {chapter.number: chapter.texts[0].name for chapter in chapters}
    return [
        Text(table, (Cell("markdown", "\n".join(lines(table.parent, known, names)), 1),))
        for name, lines in ((GLOSSARY, _glossary), (NOTES, _from_the_notes))
        if (table := root / ROOMS / name).exists()
    ]


def _linked(links: Mapping[str, str], match: re.Match[str]) -> str:
    return links.get(match[0], match[0])


def _glossary(folder: Path, known: list[Section], names: dict[int, str]) -> list[str]:
    lines = [
        "# Glossary (术语表)",
        "",
        "The terms of the course, with the section that explains them first.",
        "",
        "| term | 中文 | meaning | section |",
        "|---|---|---|---|",
    ]
    for term in sorted(read_terms(folder), key=lambda term: term.english.casefold()):
        section, name = teaching(term, known), names.get(term.chapter)
        chapter = f"[{term.chapter}]({name}.ipynb)" if name else str(term.chapter)
        chinese = f"{term.chinese} (又作 {term.also})" if term.also else term.chinese
        link = section.link if section else chapter
        lines.append(f"| {term.english} | {chinese} | {term.meaning} | {link} |")
    return lines


def _from_the_notes(folder: Path, known: list[Section], names: dict[int, str]) -> list[str]:
    chapters = {str(number): f"[{number}]({name}.ipynb)" for number, name in names.items()}
    lines = [
        "# From the notes (笔记索引)",
        "",
        "Where the course teaches what the five notes say. Chapter 0 introduces them.",
        "",
        "| note | words of the note | section | the course's word |",
        "|---|---|---|---|",
    ]
    for row in read_notes(folder):
        links = chapters | {section.number: section.link for section in taught(row, known)}
        where = _NUMBER.sub(partial(_linked, links), row.where)
        lines.append(f"| {row.note} | {row.words} | {where} | {row.ours} |")
    return lines
