"""Cards: HTML for a notebook's output, in its theme's colours; meaning is never by colour alone."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from course_lib.checking import progress
from course_lib.checking.exercises import Exercise, exercises_of

# JupyterLab's CSS variables, which follow its theme; other pages get the light defaults.
_INK = "var(--jp-content-font-color1, #212121)"
_QUIET = "var(--jp-content-font-color2, #5f5f5f)"
_EDGE = "var(--jp-border-color1, #bdbdbd)"
_PAPER = "var(--jp-layout-color0, #ffffff)"
# Okabe and Ito's green and vermilion, as in all figures, and a grey: contrast 3:1 on both themes.
GOOD, BAD, PLAIN = "#009E73", "#D55E00", "#767676"


def card(label: str, parts: Iterable[str], edge: str = PLAIN) -> str:
    """A card of HTML parts; `label` is for screen readers, `edge` the colour of its left border.

    Empty parts are allowed. Screen readers announce the card when it appears or changes.
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
    """A paragraph of plain text with `code` in backticks; "" for an empty text."""
    look = f"margin: 4px 0; color: {_QUIET if quiet else _INK}"
    return f'<p style="{look}">{with_code(text)}</p>' if text else ""


def head(icon: str, word: str, rest: str) -> str:
    """The title line: an icon, a word in bold, and the subject."""
    mark = f'<span aria-hidden="true">{icon}</span> ' if icon else ""
    return f'<p style="margin: 4px 0"><b>{mark}{escape(word)}</b> {escape(rest)}</p>'


def large(text: str, rest: str) -> str:
    """A number in large type, followed by a sentence on it."""
    return (
        f'<p style="margin: 4px 0"><span style="font-size: 1.8em; font-weight: 600; '
        f'margin-right: 0.5em">{escape(text)}</span>{escape(rest)}</p>'
    )


def listed(texts: Iterable[str]) -> str:
    """A bulleted list of plain texts; "" for none."""
    items = "".join(f"<li>{with_code(text)}</li>" for text in texts)
    return f'<ul style="margin: 4px 0; padding-left: 1.4em">{items}</ul>' if items else ""


def folded(summary: str, inner: str) -> str:
    """HTML that is hidden until its summary is clicked, or activated by keyboard."""
    opener = f'<summary style="cursor: pointer">{escape(summary)}</summary>'
    return f'<details style="margin: 4px 0">{opener}{inner}</details>'


def with_code(text: str) -> str:
    """Escape the text for HTML, with the parts in backticks as <code>."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:  # an unmatched backtick
        return escape(text)
    return "".join(
        f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces)
    )


_FEW = 3  # reasons that are shown unfolded


def todo(exercise: Exercise, reason: str) -> str:
    """The card of an exercise without an answer: what to do."""
    ask = "Replace each `...` with your answer and run the cell."
    ask = f"{_capital(reason)}." if reason else ask
    return _card("○", "To do", exercise, PLAIN, [line(ask)])


def wrong(exercise: Exercise, reason: str, attempts: int, help_: str) -> str:
    """The card of a wrong answer: the kind of error, the number of attempts, and where help is."""
    tries = f"{attempts} tries so far." if attempts > 1 else ""
    more = line(_with_calls(f"{tries} {help_}".strip()), quiet=True)
    return _card("✗", "Not right yet", exercise, BAD, [line(_sentence(reason)), more])


def right(exercise: Exercise, why: Sequence[str], notes: Sequence[str], standing: str) -> str:
    """The card of a right answer: the reasons, notes on what was saved, and what is next."""
    reasons = line(f"Why: {why[0]}.") if len(why) == 1 else listed(why)
    if len(why) > _FEW:
        reasons = folded(f"Why: {len(why)} reasons", reasons)
    parts = [reasons, *map(line, notes), line(standing, quiet=True)]
    return _card("✓", "Right", exercise, GOOD, parts)


def hint(title: str, lines: Sequence[str]) -> str:
    """The card of a hint; `lines` may have a second line on what follows the last hint."""
    first, *rest = lines
    more = (line(_with_calls(one), quiet=True) for one in rest)
    return card(title, [head("→", title, ""), line(first), *more])


def standing(exercise: Exercise) -> str:
    """How much of the chapter is done: "4 of 8 done in this chapter, next: 5.5 GPT-3."."""
    chapter = exercise.id.partition(".")[0]
    exercises = exercises_of(int(chapter))
    records = progress.read()["exercises"]
    left = [one for one in exercises if records.get(one.id, {}).get("status") != "pass"]
    done = f"{len(exercises) - len(left)} of {len(exercises)} done in this chapter"
    if not left:
        return f"All {len(exercises)} exercises of chapter {chapter} are done."
    index = exercises.index(exercise)
    following = next((one for one in left if exercises.index(one) > index), left[0])
    return f"{done}, next: {following.id} {following.title}"


def _card(icon: str, word: str, exercise: Exercise, edge: str, parts: list[str]) -> str:
    name = f"{exercise.id} {exercise.title}"
    return card(f"{word}: {name}", [head(icon, word, name), *parts], edge)


def _sentence(reason: str) -> str:
    """Turn a terminal's reason, "gave 5, expected …: too small", into "You gave 5: too small."."""
    text, _, kind = reason.partition(", expected another answer: ")
    if text.startswith("gave "):
        text = f"You {text}"
    elif text.startswith("wants "):
        text = f"The check {text.replace(', got ', '. It got ', 1)}"
    text = f"{text}. {kind[0].upper()}{kind[1:]}" if kind else text
    return _capital(text) + "." * (text[-1:] not in (".", "?", "!"))


def _with_calls(text: str) -> str:
    """Put calls of `hint` and `solution` into backticks."""
    return re.sub(r'(?:hint|solution)\("[\d.]+"\)', r"`\g<0>`", text)


def _capital(text: str) -> str:
    """Capitalize the text if it begins with one of our words, not with a name of the learner's."""
    first = text.partition(" ")[0]
    begins = first in ("for", "line", "step", "not") or text[:1].isdigit()
    return text[:1].upper() + text[1:] if begins else text
