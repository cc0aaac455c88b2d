"""The outline says what the chapters say: their titles, and what each of them needs."""

import re
from pathlib import Path

import pytest

from course_lib import outline
from course_lib.building.chapters import read_chapters
from course_lib.outline import Entry

ROOT = Path(__file__).parents[1]
ENTRIES = {entry.number: entry for entry in outline.CHAPTERS}


@pytest.fixture(scope="module")
def chapters():
    return {chapter.number: chapter for chapter in read_chapters(ROOT)}


def needed(text):
    """Chapters in "You need chapters 3 to 5; chapter 12 for cp": 3, 4, 5, 12."""
    (sentence,) = re.findall(r"You need (.*?)\.(?:\s|$)", text, re.DOTALL)
    spans = re.findall(r"\b(\d+)(?: to (\d+))?", sentence)
    return tuple(n for low, high in spans for n in range(int(low), int(high or low) + 1))


@pytest.mark.parametrize("number", ENTRIES)
def test_the_outline_has_the_titles_and_needs_of_the_chapters(chapters, number):
    chapter, entry = chapters[number], ENTRIES[number]
    if len(chapter.texts) == 1:
        assert chapter.texts[0].title.removeprefix(f"{number} ") == entry.title
    if number:
        top = next(cell for cell in chapter.cells if cell.kind == "markdown")
        assert needed(top.source) == entry.needs


def test_every_chapter_has_a_line_on_the_first_page_and_in_the_readme(chapters):
    first = "\n".join(cell.source for cell in chapters[0].cells)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for number, entry in ENTRIES.items():
        assert f"{number} {entry.title}" in readme
        if number:
            assert f"| {number} | [{entry.title}]({number:02})" in first


def test_steps_leave_out_what_another_need_brings_along():
    chapters = tuple(Entry(n, "", needs) for n, needs in enumerate([(), (), (0, 1), (0,)]))
    assert outline.steps(chapters) == [(0, 1), (1, 2), (0, 3)]
