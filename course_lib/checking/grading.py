"""Runs a check and turns whatever happens into one stable line."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib import mine
from course_lib.checking import progress
from course_lib.checking.exercises import CheckFailed, Exercise, Unanswered, Wrong, find
from course_lib.checking.honest import honest
from course_lib.checking.learners_code import learners_line
from course_lib.checking.submissions.handing import hand_over, is_graded
from course_lib.problem import Problem

# From worst to best: progress keeps the best one ever reached.
STATUSES = ("todo", "fail", "pass")
_LONGEST_LINE = 500
_next_hint: dict[str, int] = {}
_reason_of_last: dict[str, str] = {}  # why the right answer is what it is, after a wrong one


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check: status is "todo", "fail" or "pass"."""

    exercise: Exercise
    status: str
    reason: str = ""
    because: str = ""  # told after the hints

    @property
    def line(self) -> str:
        """The printed line: "[fail] 1.1 title: gave X, expected Y because ..."."""
        head = f"[{self.status}] {self.exercise.id} {self.exercise.title}"
        line = " ".join(f"{head}: {self.reason}".split()) if self.reason else head
        return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + "..."


def grade(exercise_id: str, answer: object = ...) -> Verdict:
    """The verdict on an answer, without printing or recording. Raises ValueError: unknown id."""
    exercise = find(exercise_id)
    try:
        if answer is ... or answer is None:
            raise Unanswered
        exercise.check(honest(answer))
    except Unanswered as left:
        return Verdict(exercise, "todo", str(left) or "not answered yet")
    except Wrong as wrong:
        return Verdict(exercise, "fail", str(wrong), wrong.because)
    except Exception as error:
        return Verdict(exercise, "fail", _explain(error))
    return Verdict(exercise, "pass")


def check(exercise_id: str, answer: object = ...) -> None:
    """Grade an answer, print one line and record it; under `course check`, hand it over instead.

    Raises CheckFailed when COURSE_STRICT=1 and the verdict is not a pass; nothing otherwise.
    """
    if is_graded():
        hand_over(exercise_id, answer)
        return
    try:
        verdict = grade(exercise_id, answer)
    except ValueError as unknown:
        print(f"[fail] {unknown}")
        if _strict():
            raise CheckFailed(str(unknown)) from None
        return
    print(verdict.line)
    if verdict.status == "fail":
        _reason_of_last[exercise_id] = verdict.because
        print(f'       hint("{exercise_id}") tells more.')
    if verdict.status != "todo" and not _shows_solutions():
        progress.update("exercises", exercise_id, lambda record: _count(record, verdict.status))
        if verdict.status == "pass" and verdict.exercise.verdict:
            _keep_verdict(exercise_id, verdict.exercise.verdict(honest(answer)))
        if verdict.status == "pass" and verdict.exercise.part:
            print(f"       {_kept(verdict.exercise, answer)}")
    if verdict.status != "pass" and _strict():
        raise CheckFailed(verdict.line)


def hint(exercise_id: str) -> None:
    """Print the next hint of an exercise, then why the answer is what it is, then the first again.

    The reason comes only after a wrong answer.
    """
    try:
        exercise = find(exercise_id)
    except ValueError as unknown:
        print(f"[fail] {unknown}")
        return
    hints = exercise.hints
    if reason := _reason_of_last.get(exercise_id):
        hints = (*hints, f"{reason[0].upper()}{reason[1:]}.")
    position = _next_hint.get(exercise_id, 0) % len(hints)
    _next_hint[exercise_id] = position + 1
    print(f"Hint {position + 1} of {len(hints)} for {exercise_id}: {hints[position]}")
    if position + 1 == len(hints):
        print(f'That was the last one; solution("{exercise_id}") shows an answer.')
    progress.update("exercises", exercise_id, lambda record: _count_hint(record, position + 1))


def _kept(exercise: Exercise, answer: Any) -> str:
    """Keep what was built; where it is and what to try with it, or why it is not kept."""
    answers = answer if isinstance(answer, list | tuple) else [answer]
    try:
        path = mine.keep(exercise.part, answers)
    except (Problem, OSError) as error:
        return f"It is not kept: {error}"
    if path is None:
        return "It is the course's own version: nothing to keep."
    kept = f"Kept as {path}: what comes later runs on it."
    if exercise.race is None:
        return kept
    stretch = (
        f'`from course_lib import race; race("{exercise.id}")` measures it beside the course\'s'
    )
    return f"{kept} Can you make it faster? {stretch}."


def _keep_verdict(exercise_id: str, sentence: str) -> None:
    """Keep what an audit found, and print it: the report of chapter 17 has it again."""
    progress.update("exercises", exercise_id, lambda record: record.update(verdict=sentence))
    print(f"       Your verdict is kept: {sentence}")


def _strict() -> bool:
    return os.environ.get("COURSE_STRICT") == "1"


def _shows_solutions() -> bool:
    # Jupyter tells each kernel its notebook; running the solutions is not the learner's work.
    return "solutions" in Path(os.environ.get("JPY_SESSION_NAME", "")).parts


def _count(record: dict[str, Any], status: str) -> None:
    best = record.get("status", "todo")
    record["status"] = max(best, status, key=STATUSES.index) if best in STATUSES else status
    record["attempts"] = record.get("attempts", 0) + 1
    if status == "pass":
        record.setdefault("first_pass", progress.now())


def _count_hint(record: dict[str, Any], shown: int) -> None:
    record["hints"] = max(record.get("hints", 0), shown)


def _explain(error: Exception) -> str:
    """What an exception says, with the line of the learner's own code it came through."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    where = learners_line(error)
    if where:
        return f"{where}, raised {said}"
    return f"wants another kind of answer: checking it raised {said}"
