"""What the text of a chapter says of its exercises and its quiz: kinds, titles, hints, questions.

    # %% [markdown] tags=["exercise"]
    # ### 7.1 Calculate: fits on one GPU, dies on two
    #
    # GPT-2 with 1,557,611,200 parameters …

    # %% [raw] tags=["hints"]
    # What does a rank of DDP hold that one process without DDP does not?
    # AdamW in fp32 needs 16 bytes a parameter.

    # %% [raw] tags=["quiz"]
    # How often do the ranks of DDP exchange gradients?
    # [x] at every update
    # [ ] once an epoch
    # Why: After one update with different gradients the replicas would differ.

Each line of hints is one hint. Neither hints nor questions become cells of a notebook.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from course_lib import chapters as rooms
from course_lib.checking.quizzes import Question

DATA_TAGS = frozenset({"hints", "quiz"})
HEADING = re.compile(r"### (\d+\.\d+) (\w+): (.+)")
MARK = re.compile(r"^# %%(?: \[(\w+)\])?(?: tags=(\[.*\]))?$", re.M)


@dataclass(frozen=True)
class Cell:
    """One cell of a text; `kind` is "code", "markdown" or "raw", `line` that of its `# %%`."""

    kind: str
    source: str
    line: int
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def tags(self) -> list[str]:
        """The cell's tags."""
        return list(self.metadata.get("tags", []))


def cells_of(text: str) -> Iterator[Cell]:
    """The cells of a text in the percent format, which jupytext and editors read as well."""
    marks = list(MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=True):
        source = text[mark.end() : end].strip("\n")
        if mark[1]:
            source = re.sub(r"^# ?", "", source, flags=re.M)
        metadata = {"tags": json.loads(mark[2])} if mark[2] else {}
        yield Cell(mark[1] or "code", source, text.count("\n", 0, mark.start()) + 1, metadata)


class Asked(NamedTuple):
    """What a text says of one exercise."""

    kind: str
    title: str
    hints: tuple[str, ...]


def text_of(chapter: int) -> Path:
    """The file with a chapter's text. Raises ValueError when there is no such chapter."""
    for path in rooms.files("[0-9][0-9]_*.py").values():
        if int(path.name[:2]) == chapter:
            return path
    raise ValueError(
        f"chapter {chapter} has no text: choose one of {', '.join(map(str, rooms.rooms()))}"
    )


def asked(exercise_id: str, text: Path) -> Asked:
    """Kind, title and hints of an exercise. Raises ValueError when the text does not ask it."""
    found = _exercises(text.read_text(encoding="utf-8"))
    if exercise_id not in found:
        remedy = f"write `### {exercise_id} Calculate: a title` and a cell of hints"
        raise ValueError(f"exercise {exercise_id} is missing from {text.name}: {remedy}")
    return found[exercise_id]


def questions(text: Path) -> tuple[Question, ...]:
    """The quiz of a chapter, () without one. Raises ValueError for a question without an answer."""
    cells = cells_of(text.read_text(encoding="utf-8"))
    parts = [part for cell in cells if "quiz" in cell.tags for part in cell.source.split("\n\n")]
    return tuple(_question(part.split("\n")) for part in parts)


def _question(lines: list[str]) -> Question:
    choices = [line for line in lines if line.startswith("[")]
    right = [number for number, line in enumerate(choices) if line.startswith("[x]")]
    if len(right) != 1:
        raise ValueError(f"{lines[0]!r} has {len(right)} right choices: mark one with [x]")
    why = lines[-1].removeprefix("Why: ")
    return Question(lines[0], tuple(line[4:] for line in choices), right[0], why)


@lru_cache(maxsize=32)
def _exercises(text: str) -> dict[str, Asked]:
    found: dict[str, Asked] = {}
    last = ""
    for cell in cells_of(text):
        if heading := HEADING.match(cell.source):
            last, kind, title = heading.groups()
            found[last] = Asked(kind.lower(), title, ())
        elif "hints" in cell.tags and last:
            found[last] = found[last]._replace(hints=tuple(filter(None, cell.source.split("\n"))))
    return found
