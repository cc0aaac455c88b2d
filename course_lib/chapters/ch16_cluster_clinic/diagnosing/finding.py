"""A diagnosed cause, and the phrases of its sentence.

Sentences use the past tense, whose verbs have the same form for one rank and for several.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from course_lib.launch.page import Call, Line

HOW_TO_RECORD = (
    "Record a launch: `course demo NAME --record FOLDER`, or a program of your own with the line"
    " `import course_lib.record`, started by `COURSE_RECORD=FOLDER torchrun …`."
)


@dataclass(frozen=True)
class Finding:
    """One diagnosed cause.

    ranks: the ranks at fault, empty if two sides disagree and nothing shows which is wrong; lines:
    the line of code of each rank that matters; sentence: what happened; remedy: what to do.
    """

    cause: str
    sentence: str
    remedy: str = ""
    ranks: tuple[int, ...] = ()
    lines: dict[int, Line] = field(default_factory=dict)


def found(
    cause: str,
    sentence: str,
    remedy: str,
    ranks: Iterable[int] = (),
    lines: dict[int, Line | None] | None = None,
) -> Finding:
    """Make a Finding, leaving out the lines that are None."""
    known = {rank: line for rank, line in (lines or {}).items() if line}
    return Finding(cause, sentence, remedy, tuple(ranks), known)


def named(ranks: Iterable[int]) -> str:
    """The ranks in words, such as "rank 1" or "ranks 0, 1 and 3"."""
    *most, last = map(str, sorted(ranks))
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def accused(ranks: Sequence[int]) -> str:
    """The start of a sentence that names these ranks as the cause, before what they did."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]} is the cause: it"
    return f"{named(ranks).capitalize()} are the cause: they"


def opening(blamed: Sequence[int], side: Sequence[int], all_: Iterable[int]) -> str:
    """The start of a sentence before what `side` did; without `blamed`, no rank is the cause."""
    if blamed:
        return accused(blamed)
    return f"{named(all_).capitalize()} disagree, and nothing shows which is wrong: {named(side)}"


def at(line: Line | None) -> str:
    """The line in words, such as " at train.py:42 (`time.sleep(1)`)"; "" for None."""
    if line is None:
        return ""
    text = line.text if len(line.text) <= 70 else line.text[:67] + "..."
    return f" at {line.place} (`{text}`)" if text else f" at {line.place} (in {line.function})"


def size(call: Call) -> str:
    """Elements and dtypes of a call's tensors, such as "4,000 float"; "" if not known."""
    pairs = zip(call.sizes, call.dtypes, strict=False)
    parts = [f"{prod(shape):,} {kind.lower()}" for shape, kind in pairs]
    return " + ".join(parts[:3]) + (" + …" if len(parts) > 3 else "")


def the(call: Call) -> str:
    """Name and number of a call, such as "all_reduce number 17"; the name alone if number is 0."""
    return f"{call.name} number {call.number}" if call.number else call.name
