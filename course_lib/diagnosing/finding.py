"""What the doctor says, and the words that it is said in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from course_lib.diagnosing.page import Call, Line

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


def named(ranks: Iterable[int]) -> str:
    """ "rank 1", "ranks 0 and 2", "ranks 0, 1 and 3"."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def begins(ranks: Iterable[int]) -> str:
    """The same at the beginning of a sentence."""
    return named(ranks).capitalize()


def accused(ranks: Sequence[int]) -> str:
    """ "Rank 1 is the cause: it", "Ranks 1 and 2 are the cause: they"."""
    return f"{begins(ranks)} {verb(ranks, 'is the cause: it', 'are the cause: they')}"


def opening(blamed: Sequence[int], side: Sequence[int], all_: Iterable[int]) -> str:
    """How a sentence begins that goes on with what `side` does; without `blamed`, nobody is."""
    if blamed:
        return accused(blamed)
    return f"{begins(all_)} disagree, and nothing shows which is wrong: {named(side)}"


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The verb for so many."""
    return one if len(ranks) == 1 else many


def at(line: Line | None) -> str:
    """at train.py:42 (`time.sleep(1)`), with a blank before; nothing for an unknown line."""
    if line is None:
        return ""
    text = line.text if len(line.text) <= 70 else line.text[:67] + "..."
    return f" at {line.place} (`{text}`)" if text else f" at {line.place} (in {line.function})"


def size(call: Call) -> str:
    """The elements and types of what is sent: "4 float", "4000 float"; "" where not known."""
    pairs = zip(call.sizes, call.dtypes, strict=False)
    parts = [f"{elements(shape):,} {kind.lower()}" for shape, kind in pairs]
    return " + ".join(parts[:3]) + (" + …" if len(parts) > 3 else "")


def elements(shape: Sequence[int]) -> int:
    """How many numbers a tensor of that shape has."""
    count = 1
    for length in shape:
        count *= length
    return count


def the(call: Call) -> str:
    """ "all_reduce number 17"; without its number where it is not known."""
    return f"{call.name} number {call.number}" if call.number else call.name
