"""Parses the texts of a chapter, one for each sitting: cells, exercises and questions of the quiz.

    # %% [markdown] tags=["exercise"]
    # ### 7.1 Calculate: fits on one GPU, dies on two
    #
    # GPT-2 with 1,557,611,200 parameters …

    # %% [raw] tags=["hints"]
    # importance 4, difficulty 2
    # What does a rank of DDP hold that one process without DDP does not?
    # AdamW in fp32 needs 16 bytes a parameter.

    # %% [raw] tags=["quiz"]
    # How often do the ranks of DDP exchange gradients?
    # [x] at every update
    # [ ] once an epoch
    # Why: After one update with different gradients the replicas would differ.

Each further line of a hints cell is one hint. Raw cells with data are not copied to notebooks.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from course_lib import chapters as rooms
from course_lib.checking import progress

TEXTS = "[0-9][0-9]_*.py"
DATA_TAGS = frozenset({"hints", "quiz", "sitting"})
HEADING = re.compile(r"### (\d+\.\d+) (\w+): (.+)")
MARK = re.compile(r"^# %%(?: \[(\w+)\])?(?: tags=(\[.*\]))?$", re.M)


@dataclass(frozen=True)
class Cell:
    """A cell of a text; `kind` is "code", "markdown" or "raw", `line` is the line of its `# %%`."""

    kind: str
    source: str
    line: int
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def tags(self) -> list[str]:
        """The cell's tags."""
        return list(self.metadata.get("tags", []))


def cells_of(text: str) -> Iterator[Cell]:
    """Parse a text in the percent format, which jupytext and editors support."""
    marks = list(MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    line, position = 1, 0
    for mark, end in zip(marks, ends, strict=True):
        line, position = line + text.count("\n", position, mark.start()), mark.start()
        source = text[mark.end() : end].strip("\n")
        if mark[1]:
            source = re.sub(r"^# ?", "", source, flags=re.M)
        metadata = {"tags": json.loads(mark[2])} if mark[2] else {}
        yield Cell(mark[1] or "code", source, line, metadata)


class Asked(NamedTuple):
    """An exercise's kind, title and hints; importance and difficulty from 1 to 5.

    `group`: better done with others.
    """

    kind: str
    title: str
    hints: tuple[str, ...]
    importance: int = 3
    difficulty: int = 3
    group: bool = False


def room_of(chapter: int) -> Path:
    """The folder of a chapter. Raises ValueError if there is no such chapter."""
    for path in rooms.files(TEXTS).values():
        if int(path.name[:2]) == chapter:
            return path.parent
    raise ValueError(
        f"chapter {chapter} has no text: choose one of {', '.join(map(str, rooms.rooms()))}"
    )


def asked(exercise_id: str, room: Path) -> Asked:
    """The data of an exercise. Raises ValueError if no text in the folder `room` has it."""
    for text in sorted(room.glob(TEXTS)):
        exercises = asked_in(text.read_text(encoding="utf-8"))
        if exercise_id in exercises:
            return exercises[exercise_id]
    remedy = f"write `### {exercise_id} Calculate: a title` and a cell of hints"
    raise ValueError(f"exercise {exercise_id} is missing from {room.name}: {remedy}")


_RATED = re.compile(r"importance ([1-5]), difficulty ([1-5])(, group)?")


@lru_cache(maxsize=64)
def asked_in(text: str) -> dict[str, Asked]:
    """{id: data} of the exercises in a text, in its order."""
    found: dict[str, Asked] = {}
    last = ""
    for cell in cells_of(text):
        if heading := HEADING.match(cell.source):
            last, kind, title = heading.groups()
            found[last] = Asked(kind.lower(), title, ())
        elif "hints" in cell.tags and last:
            found[last] = _with_hints(found[last], cell.source)
    return found


def _with_hints(exercise: Asked, source: str) -> Asked:
    first, *rest = filter(None, source.split("\n"))
    rated = _RATED.fullmatch(first)
    if rated is None:
        return exercise._replace(hints=(first, *rest))
    importance, difficulty = int(rated[1]), int(rated[2])
    return Asked(exercise.kind, exercise.title, (*rest,), importance, difficulty, bool(rated[3]))


# --- The quiz -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """One question: `answer` is the index of the right one of `choices`, `why` explains it.

    Raises ValueError if choices are fewer than two or not all different, or `answer` is no index.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    why: str

    def __post_init__(self) -> None:
        if isinstance(self.choices, str) or len(set(self.choices)) < max(2, len(self.choices)):
            raise ValueError(f"choices must be at least two different texts, got {self.choices!r}")
        if isinstance(self.answer, bool) or self.answer not in range(len(self.choices)):
            last = len(self.choices) - 1
            raise ValueError(f"answer must be an index from 0 to {last}, got {self.answer!r}")
        if not self.why:
            raise ValueError(f"why must explain the answer to {self.text!r}: give one sentence")


def questions(room: Path) -> tuple[Question, ...]:
    """The quiz of a chapter, () if it has none. Raises ValueError for an invalid question."""
    cells = [
        cell for text in sorted(room.glob(TEXTS)) for cell in cells_of(text.read_text("utf-8"))
    ]
    parts = [part for cell in cells if "quiz" in cell.tags for part in cell.source.split("\n\n")]
    return tuple(_question(part.split("\n")) for part in parts)


def _question(lines: list[str]) -> Question:
    choices = [line for line in lines if line.startswith("[")]
    right = [number for number, line in enumerate(choices) if line.startswith("[x]")]
    if len(right) != 1:
        raise ValueError(f"{lines[0]!r} has {len(right)} right choices: mark one with [x]")
    why = lines[-1].removeprefix("Why: ")
    return Question(lines[0], tuple(line[4:] for line in choices), right[0], why)


def feedback(question: Question, chosen: int | None) -> dict[str, str]:
    """The feedback on one answer: its "state", shown as a colour, and a text with an icon."""
    if chosen is None:
        return {"state": "open", "text": "○ Not answered yet."}
    if chosen == question.answer:
        return {"state": "right", "text": f"✓ Right. {question.why}"}
    return {"state": "wrong", "text": f"✗ No: {question.choices[question.answer]}. {question.why}"}


def record(chapter: str, right: int, of: int) -> None:
    """Save the score of a quiz in the progress file: the latest and the best."""

    def keep(kept: dict[str, Any]) -> None:
        best = min(max(kept.get("best", 0), right), of)
        kept.update(right=right, of=of, best=best, at=progress.now())

    progress.update("quizzes", chapter, keep)
