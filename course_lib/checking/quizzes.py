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


@dataclass(frozen=True)
class Score:
    """The outcome of one try; `answers` holds one index per question, None where unanswered."""

    questions: tuple[Question, ...]
    answers: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if len(self.answers) != len(self.questions):
            counts = f"{len(self.questions)} questions, {len(self.answers)} answers"
            raise ValueError(f"answers must match the questions, got {counts}: give None for a gap")

    @property
    def right(self) -> int:
        """Number of right answers."""
        return sum(q.answer == a for q, a in zip(self.questions, self.answers, strict=True))

    @property
    def complete(self) -> bool:
        """True when every question is answered."""
        return None not in self.answers

    @property
    def text(self) -> str:
        """One sentence: "3 of 4 right, 1 not answered yet"."""
        open_ = sum(answer is None for answer in self.answers)
        tail = f", {open_} not answered yet" if open_ else ""
        return f"{self.right} of {len(self.questions)} right{tail}"


def feedback(question: Question, chosen: int | None) -> str:
    """One line on one answer: right or not, and why once it is answered."""
    if chosen is None:
        return "Not answered yet."
    verdict = "Right" if chosen == question.answer else f"No: {question.choices[question.answer]}"
    return f"{verdict}. {question.why}"


def record(chapter: int | str, score: Score) -> None:
    """Keep a complete score in the progress file: the latest and the best."""
    if score.complete:
        progress.update("quizzes", str(int(chapter)), lambda kept: _keep(kept, score))


def _keep(kept: dict[str, Any], score: Score) -> None:
    kept["right"], kept["of"] = score.right, len(score.questions)
    kept["best"] = min(max(kept.get("best", 0), score.right), len(score.questions))
    kept["at"] = progress.now()
