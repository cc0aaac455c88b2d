"""What the doctor says, and the words that it is said in.

What ranks did is said in the past tense, whose verbs are the same for one rank and for several.
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
    """One cause.

    ranks: the accused, none where two sides disagree and nothing says which is wrong; lines: where
    each rank that matters was; sentence: what happened; remedy: what to do.
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
    """A Finding with those of the lines that are known."""
    known = {rank: line for rank, line in (lines or {}).items() if line}
    return Finding(cause, sentence, remedy, tuple(ranks), known)


def named(ranks: Iterable[int]) -> str:
    """Such as "rank 1" or "ranks 0, 1 and 3"."""
    *most, last = map(str, sorted(ranks))
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def accused(ranks: Sequence[int]) -> str:
    """How a sentence begins that goes on with what these ranks did."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]} is the cause: it"
    return f"{named(ranks).capitalize()} are the cause: they"


def opening(blamed: Sequence[int], side: Sequence[int], all_: Iterable[int]) -> str:
    """How a sentence begins that goes on with what `side` did; without `blamed`, nobody is."""
    if blamed:
        return accused(blamed)
    return f"{named(all_).capitalize()} disagree, and nothing shows which is wrong: {named(side)}"


def at(line: Line | None) -> str:
    """Such as " at train.py:42 (`time.sleep(1)`)"; nothing for an unknown line."""
    if line is None:
        return ""
    text = line.text if len(line.text) <= 70 else line.text[:67] + "..."
    return f" at {line.place} (`{text}`)" if text else f" at {line.place} (in {line.function})"


def size(call: Call) -> str:
    """The elements and types of what is sent: "4 float", "4,000 float"; "" where not known."""
    pairs = zip(call.sizes, call.dtypes, strict=False)
    parts = [f"{prod(shape):,} {kind.lower()}" for shape, kind in pairs]
    return " + ".join(parts[:3]) + (" + …" if len(parts) > 3 else "")


def the(call: Call) -> str:
    """Such as "all_reduce number 17"; without its number where it is not known."""
    return f"{call.name} number {call.number}" if call.number else call.name
