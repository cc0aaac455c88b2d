"""The glossary and the chapters agree: each term in its first chapter, and none forgotten."""

import re
from pathlib import Path

import pytest

from course_lib import outline
from course_lib.building.chapters import read_chapters
from course_lib.building.pages import pages
from course_lib.finding import GLOSSARY, find, read_notes, read_terms, sections
from course_lib.problem import Problem

ROOT = Path(__file__).parents[2]
TERMS = read_terms()
CHINESE = "[\u4e00-\u9fff]"


@pytest.fixture(scope="module")
def texts():
    """By number: all cells of each chapter."""
    return {
        chapter.number: "\n".join(cell.source for cell in chapter.cells)
        for chapter in read_chapters(ROOT)
    }


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.english)
def test_a_term_is_named_in_its_chapter_and_not_before(texts, term):
    whole = re.compile(f"(?<!{CHINESE}){term.chinese}(?!{CHINESE})")
    using = [number for number, text in texts.items() if whole.search(text)]
    assert using, f"no chapter says {term.chinese}"
    assert min(using) == term.chapter
    assert term.meaning.endswith(".")


@pytest.mark.parametrize("number", [entry.number for entry in outline.CHAPTERS])
def test_each_chinese_term_of_a_chapter_is_in_the_table(texts, number):
    listed = {term.chinese for term in TERMS if term.chapter <= number}
    named = re.findall(f"[(（]({CHINESE}+)", texts[number])
    assert set(named) <= listed


def test_no_term_stands_twice():
    names = [term.english for term in TERMS]
    assert len(names) == len(set(names))
    also = {word for term in TERMS for word in term.also.split("、") if word}
    assert {"管道并行", "泡沫", "流水级"} <= also
    assert not also & {term.chinese for term in TERMS}


def test_the_pages_link_to_the_sections():
    glossary, from_the_notes = (page.cells[0].source for page in pages(ROOT, read_chapters(ROOT)))
    assert re.search(
        r"\| epoch \| 轮次 \| One pass over .*? \| \[1\.1\]\(01_\w+\.ipynb#1\.1-", glossary
    )
    assert "| bubble | 气泡 (又作 泡沫" in glossary
    assert glossary.count("\n| ") == len(TERMS) + 1
    linked = re.findall(r"\[(\d+(?:\.\d+)?)\]\(\d\d_\w+\.ipynb", from_the_notes)
    assert len(linked) >= len(read_notes()) and "4.3" in linked


def test_every_section_that_the_notes_lead_to_exists():
    known = {each.number for chapter in read_chapters(ROOT) for each in sections(paths(chapter))}
    named = {number for row in read_notes() for number in re.findall(r"\d+\.\d+", row.where)}
    assert named <= known


def paths(chapter):
    return [text.path for text in chapter.texts]


@pytest.mark.parametrize(
    ("word", "section"), [("梯度累加", "2.1 "), ("Reduce-Scatter", "6.1 "), ("alpha", "")]
)
def test_a_word_leads_to_sections(word, section):
    assert any(line.startswith(section) for line in find(word))


def test_a_word_that_nobody_says():
    with pytest.raises(ValueError, match="no section says 'xyzzy'"):
        find("xyzzy")


HEAD = "chapter\tterm\t中文\tmeaning\t又作\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEAD}1\tterm\t术语\n", "glossary.tsv:2: write chapter, term"),
        (f"{HEAD}one\tterm\t术语\tMeaning.\n", "glossary.tsv:2: write chapter, term"),
        (f"{HEAD}1\t\t术语\tMeaning.\n", "glossary.tsv:2: write chapter, term"),
        ("term\n", "glossary.tsv:1: the columns must be"),
    ],
)
def test_a_bad_row_is_named(tmp_path, text, words):
    (tmp_path / GLOSSARY).write_text(text, encoding="utf-8")
    with pytest.raises(Problem, match=words):
        read_terms(tmp_path)
