"""Tables and lists of the report, as HTML; every word of a learner is escaped."""

import html
from collections.abc import Collection, Iterable, Sequence

_NUMBER = ' class="number"'


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], about: str, numbers: Collection[int] = ()
) -> str:
    """A table; the columns `numbers` stand to the right. `about`: what it is, for listeners."""
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
