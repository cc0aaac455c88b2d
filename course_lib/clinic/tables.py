"""The tables of `commands`, to be shown in a notebook: HTML there, plain rows elsewhere."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.clinic.commands import COMMANDS, FLAGS, Command
from course_lib.clinic.container import VENDORS

_LEFT = 'style="text-align: left"'


@dataclass(frozen=True)
class Table:
    """A heading and rows of words: `code` and [links](…) as in Markdown, nothing else."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __repr__(self) -> str:
        return "\n".join(" · ".join(cell for cell in row if cell) for row in self.rows)

    def _repr_html_(self) -> str:
        head = "".join(f"<th {_LEFT}>{_html(cell)}</th>" for cell in self.heading)
        rows = "".join(
            f"<tr>{''.join(f'<td {_LEFT}>{_html(cell)}</td>' for cell in row)}</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def by_vendor(*words: str) -> Table:
    """The commands of the three vendors for all questions whose command has one of the words."""
    rows = [
        (one.question, *(_code(name) for name in (one.nvidia, one.amd, one.hygon)))
        for one in _with(words)
    ]
    return Table(("question", *VENDORS), rows)


def how_to_read(*words: str) -> Table:
    """How to read those commands (NVIDIA's, or everybody's), and what they can't say."""
    rows = [
        (_code(one.nvidia), one.read, one.unsaid, f"[source]({one.source})") for one in _with(words)
    ]
    return Table(("command", "how to read it", "what it can't say", ""), rows)


def flags() -> Table:
    """The options of `docker run`: who needs each, why, and what happens without it."""
    rows = [
        (_code(one.flag), one.nvidia, one.amd, one.hygon, one.why, one.without) for one in FLAGS
    ]
    return Table(("option", *VENDORS, "why", "without it"), rows)


def _with(words: Sequence[str]) -> list[Command]:
    found = [one for one in COMMANDS if any(word in one.nvidia for word in words)]
    if not found:
        raise ValueError(f"no command has one of the words {words}: see clinic.commands.COMMANDS")
    return found


def _html(words: str) -> str:
    words = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words, quote=False))
    return re.sub(r"\[([^]]+)\]\((https:[^)\s\"]+)\)", r'<a href="\2">\1</a>', words)


def _code(command: str) -> str:
    return f"`{command}`" if command else "–"
