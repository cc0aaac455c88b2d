"""What leads from one notebook to the next, and from a paper's number to the paper."""

import re
from collections.abc import Sequence

from course_lib.building.chapters import Cell, Chapter

# Code in backticks and whole links come first, so that what stands in them is left alone.
_PAPER = re.compile(
    r"(?P<ticks>`+).+?(?P=ticks)(?!`)|\[[^\]]*\]\([^)]*\)|arXiv:(?P<number>\d{4}\.\d{4,5})",
    re.S,
)


def with_papers(text: str) -> str:
    """Markdown in which each arXiv:1910.02054 is a link to that paper."""
    return _PAPER.sub(_linked, text)


def _linked(found: re.Match[str]) -> str:
    number = found["number"]
    return f"[{found[0]}](https://arxiv.org/abs/{number})" if number else found[0]


def bar(chapters: Sequence[Chapter], chapter: Chapter, folder: str) -> Cell:
    """A line of links: previous chapter, this one, its exercises, solutions, next chapter.

    `folder` is that of the notebook with the line; what the reader has open stands there in bold.
    """
    place = [each.name for each in chapters].index(chapter.name)
    parts = []
    if place:
        parts.append(_link(f"← {chapters[place - 1].title}", chapters[place - 1], folder))
    if chapter.has_exercises:
        for there, words in _FOLDERS.items():
            here = there == folder
            parts.append(f"**{words}**" if here else _link(words, chapter, folder, there))
    if place + 1 < len(chapters):
        parts.append(_link(f"{chapters[place + 1].title} →", chapters[place + 1], folder))
    return Cell("markdown", " · ".join(parts), 0)


_FOLDERS = {"notebooks": "chapter", "exercises": "exercises", "solutions": "solutions"}


def _link(words: str, chapter: Chapter, here: str, there: str = "notebooks") -> str:
    path = "" if here == there else f"../{there}/"
    return f"[{words}]({path}{chapter.name}.ipynb)"
