"""Multiple-choice questions as data, how they are scored, and how a score is kept."""

from dataclasses import dataclass
from typing import Any

from course_lib.checking import progress


@dataclass(frozen=True)
class Question:
    """One question: `answer` is the index of the right one of `choices`, `why` explains it.

    Raises ValueError when there are fewer than two different choices or `answer` is none of them.
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


def feedback(question: Question, chosen: int | None) -> dict[str, str]:
    """What is said to one answer, by an icon and a word beside the colour of its "state"."""
    if chosen is None:
        return {"state": "open", "text": "○ Not answered yet."}
    if chosen == question.answer:
        return {"state": "right", "text": f"✓ Right. {question.why}"}
    return {"state": "wrong", "text": f"✗ No: {question.choices[question.answer]}. {question.why}"}


def record(chapter: str, right: int, of: int) -> None:
    """Keep the score of a quiz in the progress file: the latest and the best."""

    def keep(kept: dict[str, Any]) -> None:
        best = min(max(kept.get("best", 0), right), of)
        kept.update(right=right, of=of, best=best, at=progress.now())

    progress.update("quizzes", chapter, keep)
