"""How a verdict, a hint, and what is left to do look in a notebook."""

import re
from collections.abc import Sequence

from course_lib.checking import cards, progress
from course_lib.checking.exercises import Exercise, exercises_of

_FEW = 3  # reasons that are shown at once


def todo(exercise: Exercise, reason: str) -> str:
    """Not answered yet: what to do."""
    ask = "Replace each `...` with your answer and run the cell."
    ask = f"{_capital(reason)}." if reason else ask
    return _card("○", "To do", exercise, cards.PLAIN, [cards.line(ask)])


def wrong(exercise: Exercise, reason: str, attempts: int, help_: str) -> str:
    """Wrong: in which way, how often, and what helps."""
    tries = f"{attempts} tries so far." if attempts > 1 else ""
    more = cards.line(_with_calls(f"{tries} {help_}".strip()), quiet=True)
    return _card("✗", "Not right yet", exercise, cards.BAD, [cards.line(_sentence(reason)), more])


def right(exercise: Exercise, why: Sequence[str], notes: Sequence[str], standing: str) -> str:
    """Right: why, what was kept of it, and what is next."""
    said = [cards.line(f"Why: {why[0]}.")] if len(why) == 1 else [_reasons(why)]
    said += [cards.line(note) for note in notes]
    return _card("✓", "Right", exercise, cards.GOOD, [*said, cards.line(standing, quiet=True)])


def hint(head: str, lines: Sequence[str]) -> str:
    """A hint; a second line, if there is one, says what comes after the last."""
    first, *rest = lines
    return cards.card(
        head,
        [
            cards.head("→", head, ""),
            cards.line(first),
            *(cards.line(_with_calls(one), quiet=True) for one in rest),
        ],
    )


def standing(exercise: Exercise) -> str:
    """How much of the chapter is done: "4 of 8 done in this chapter, next: 5.5 GPT-3."."""
    chapter = exercise.id.partition(".")[0]
    exercises = exercises_of(int(chapter))
    kept = progress.read()["exercises"]
    left = [one for one in exercises if kept.get(one.id, {}).get("status") != "pass"]
    done = f"{len(exercises) - len(left)} of {len(exercises)} done in this chapter"
    if not left:
        return f"All {len(exercises)} exercises of chapter {chapter} are done."
    place = exercises.index(exercise)
    following = next((one for one in left if exercises.index(one) > place), left[0])
    return f"{done}, next: {following.id} {following.title}"


def _card(icon: str, word: str, exercise: Exercise, edge: str, parts: list[str]) -> str:
    name = f"{exercise.id} {exercise.title}"
    return cards.card(f"{word}: {name}", [cards.head(icon, word, name), *parts], edge)


def _reasons(why: Sequence[str]) -> str:
    listed = cards.listed(why)
    return cards.folded(f"Why: {len(why)} reasons", listed) if len(why) > _FEW else listed


def _sentence(reason: str) -> str:
    """ "You gave 5: too small." of what the line of a terminal says: "gave 5, expected …"."""
    text, _, kind = reason.partition(", expected another answer: ")
    if text.startswith("gave "):
        text = f"You {text}"
    elif text.startswith("wants "):
        text = f"The check {text.replace(', got ', '. It got ', 1)}"
    text = f"{text}. {kind[0].upper()}{kind[1:]}" if kind else text
    return _capital(text) + "." * (text[-1:] not in (".", "?", "!"))


def _with_calls(text: str) -> str:
    """With calls of `hint` and `solution` as code."""
    return re.sub(r'(?:hint|solution)\("[\d.]+"\)', r"`\g<0>`", text)


def _capital(text: str) -> str:
    """With a capital letter where a sentence of ours begins, not a name of the learner's."""
    first = text.partition(" ")[0]
    begins = first in ("for", "line", "step", "not") or text[:1].isdigit()
    return text[:1].upper() + text[1:] if begins else text
