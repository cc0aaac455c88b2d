"""Cards: HTML for a notebook's output, in the colours of its theme; icon and word, never colour
alone."""

from collections.abc import Iterable
from html import escape

# JupyterLab's own colours, which follow its theme; other pages get the light ones.
_INK = "var(--jp-content-font-color1, #212121)"
_QUIET = "var(--jp-content-font-color2, #5f5f5f)"
_EDGE = "var(--jp-border-color1, #bdbdbd)"
_PAPER = "var(--jp-layout-color0, #ffffff)"
# Okabe and Ito's green and vermilion, as in all figures, and a grey: each 3 to 1 on both themes.
GOOD, BAD, PLAIN = "#009E73", "#D55E00", "#767676"


def card(label: str, parts: Iterable[str], edge: str = PLAIN) -> str:
    """A card of HTML parts; `label` is its name for screen readers, `edge` the colour at its left.

    What is "" is left out. Screen readers announce it when it comes, or changes.
    """
    look = (
        f"color: {_INK}; background: {_PAPER}; border: 1px solid {_EDGE}; border-left: 5px solid "
        f"{edge}; border-radius: 4px; padding: 6px 14px; margin: 4px 0; max-width: 720px; "
        "box-sizing: border-box; overflow-wrap: break-word"
    )
    return (
        f'<div role="status" class="course-card" aria-label="{escape(label)}" style="{look}">'
        f"{''.join(parts)}</div>"
    )


def line(text: str, quiet: bool = False) -> str:
    """A paragraph of plain text, `code` in back quotes; "" for none."""
    look = f"margin: 4px 0; color: {_QUIET if quiet else _INK}"
    return f'<p style="{look}">{with_code(text)}</p>' if text else ""


def head(icon: str, word: str, rest: str) -> str:
    """The first line: an icon, a word in bold and what it is about."""
    mark = f'<span aria-hidden="true">{icon}</span> ' if icon else ""
    return f'<p style="margin: 4px 0"><b>{mark}{escape(word)}</b> {escape(rest)}</p>'


def large(text: str, rest: str) -> str:
    """A number to be seen first, and a sentence on it."""
    return (
        f'<p style="margin: 4px 0"><span style="font-size: 1.8em; font-weight: 600; '
        f'margin-right: 0.5em">{escape(text)}</span>{escape(rest)}</p>'
    )


def listed(texts: Iterable[str]) -> str:
    """A list of plain texts."""
    items = "".join(f"<li>{with_code(text)}</li>" for text in texts)
    return f'<ul style="margin: 4px 0; padding-left: 1.4em">{items}</ul>' if items else ""


def folded(summary: str, inner: str) -> str:
    """Something that opens when its summary is chosen, by mouse or by key."""
    opener = f'<summary style="cursor: pointer">{escape(summary)}</summary>'
    return f'<details style="margin: 4px 0">{opener}{inner}</details>'


def with_code(text: str) -> str:
    """Escaped text, in which what stands between back quotes is code."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:  # a quote without its other half
        return escape(text)
    return "".join(
        f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces)
    )
