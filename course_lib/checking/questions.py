"""The questions of a chapter's quiz, which lie in its texts.

# %% [raw] tags=["quiz"]
# How often do the ranks of DDP exchange gradients?
# [x] at every update
# [ ] once an epoch
# Why: After one update with different gradients the replicas would differ.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.checking import progress
from course_lib.texts import TEXTS, cells_of


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
