"""What a section of the report is made of: words, tables, numbers; what is not ours is escaped."""

import html
import re
from collections.abc import Collection, Iterable, Sequence

from course_lib.checking.gaps import in_words
from course_lib.figures.paper.drawing import Drawing

# Markdown, a figure, or ("html", a table).
Part = str | Drawing | tuple[str, str]
_NUMBER = ' class="number"'


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], about: str, numbers: Collection[int] = ()
) -> str:
    """A table; the columns `numbers` are aligned right. `about`: what it is, for screen readers."""
    names = "".join(_cell(name, "th", place in numbers) for place, name in enumerate(head))
    lines = "".join(
        f"<tr>{''.join(_cell(text, 'td', at in numbers) for at, text in enumerate(row))}</tr>"
        for row in rows
    )
    opening = f'<table aria-label="{html.escape(about)}">'
    return f"{opening}<thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"


class Cell(str):
    """HTML of a whole cell, where all others are text."""


def state(word: str) -> Cell:
    """A cell of the checks: the word with a sign, and a colour for those who see it."""
    signs = {"yes": "✓ yes", "no": "✗ no", "open": "○ open"}
    return Cell(f'<td class="state {word}">{signs[word]}</td>')


def _cell(text: str, kind: str, number: bool) -> str:
    if isinstance(text, Cell):
        return text
    return f"<{kind}{_NUMBER * number}>{html.escape(text)}</{kind}>"


def told(value: float | None, unit: str) -> str:
    """A number with its unit, to four digits; a dash where there is none."""
    return "–" if value is None else in_words(value, unit, digits=4)


def plain(text: str) -> str:
    """A sentence of ours inside Markdown: its signs are no formatting."""
    return re.sub(r"([\\`*_{}\[\]<>#|$])", r"\\\1", text)
