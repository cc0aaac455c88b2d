"""`check`, `hint`, `solution` and `quiz`; any outcome of a check becomes one stable line."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib import mine
from course_lib.checking import cards, progress
from course_lib.checking.exercises import (
    CheckFailed,
    Exercise,
    Unanswered,
    Wrong,
    find,
    kept,
)
from course_lib.checking.own_work import learners_line, noted
from course_lib.checking.questions import Question, questions
from course_lib.checking.submissions.answers import hand_over, is_graded
from course_lib.checking.values import to_builtin
from course_lib.notebook import in_notebook, show
from course_lib.problem import Problem
from course_lib.show import Source
from course_lib.texts import room_of, solution_of

if TYPE_CHECKING:
    from course_lib.checking.widgets import QuizWidget

# From worst to best: progress stores the best one ever reached.
STATUSES = ("todo", "fail", "pass")
_LONGEST_LINE = 500
_NOT_ANSWERED = "not answered yet"
_next_hint: dict[str, int] = {}
_reason_of_last: dict[
    str, str
] = {}  # by exercise, after a wrong answer: why the right one is right


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check: status is "todo", "fail" or "pass"."""

    exercise: Exercise
    status: str
    reason: str = ""
    because: str = ""  # the reason of the right answer, shown after the last hint
    why: tuple[str, ...] = ()  # the reasons of a right answer that its check recorded

    @property
    def line(self) -> str:
        """The printed line: "[fail] 1.1 title: gave X, expected Y because ..."."""
        head = f"[{self.status}] {self.exercise.id} {self.exercise.title}"
        line = " ".join(f"{head}: {self.reason}".split()) if self.reason else head
        return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + "..."


def grade(exercise_id: str, answer: object = ...) -> Verdict:
    """Grade an answer without printing or recording. Raises ValueError for an unknown id."""
    exercise = find(exercise_id)
    try:
        if answer is ... or answer is None:
            raise Unanswered
        with kept() as why, noted() as borrowed:
            exercise.check(to_builtin(answer))
    except Unanswered as unanswered:
        return Verdict(exercise, "todo", str(unanswered) or _NOT_ANSWERED)
    except Wrong as wrong:
        return Verdict(exercise, "fail", str(wrong), wrong.because)
    except Exception as error:
        return Verdict(exercise, "fail", _explain(error))
    own = f"it runs the course's own {', '.join(sorted(borrowed))}: nothing is kept, and it does "
    own += "not count as yours"
    return Verdict(exercise, "pass", own if borrowed else "", why=tuple(why))


def check(exercise_id: str, answer: object = ...) -> None:
    """Grade an answer, show the verdict and record it; under `course check`, submit it instead.

    Raises CheckFailed if COURSE_STRICT=1 and the verdict is not a pass; otherwise never raises.
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
    record, notes = _recorded(verdict, answer)
    text = "\n       ".join([verdict.line, *notes])
    if in_notebook():
        show(_card(verdict, record, notes), text)
    else:
        print(text)
    if verdict.status != "pass" and _strict():
        raise CheckFailed(verdict.line)


def hint(exercise_id: str) -> None:
    """Show the next hint of an exercise; after the last one, start again with the first.

    After a wrong answer, the reason for the right one counts as the last hint.
    """
    try:
        exercise = find(exercise_id)
    except ValueError as unknown:
        print(f"[fail] {unknown}")
        return
    hints = _hints(exercise)
    number = _next_hint.get(exercise_id, 0) % len(hints) + 1
    _next_hint[exercise_id] = number

    def count(record: dict[str, Any]) -> None:
        record["hints"] = max(record.get("hints", 0), number)

    progress.update("exercises", exercise_id, count)
    lines = [hints[number - 1]]
    if number == len(hints):
        lines.append(f'That was the last one; solution("{exercise_id}") shows an answer.')
    head = f"Hint {number} of {len(hints)} for {exercise_id}"
    show(cards.hint(head, lines), f"{head}: " + "\n".join(lines))


def _hints(exercise: Exercise) -> tuple[str, ...]:
    """The hints, followed, after a wrong answer, by the reason for the right one."""
    reason = _reason_of_last.get(exercise.id)
    return (*exercise.hints, f"{reason[0].upper()}{reason[1:]}.") if reason else exercise.hints


def _recorded(verdict: Verdict, answer: Any) -> tuple[dict[str, Any], list[str]]:
    """Record the verdict; return the exercise's progress record and the notes to show."""
    exercise, notes = verdict.exercise, []
    if verdict.status == "fail":
        _reason_of_last[exercise.id] = verdict.because
        more = f'hint("{exercise.id}") tells more.'
        if _next_hint.get(exercise.id, 0) >= len(_hints(exercise)):
            more = f'You have seen all hints; solution("{exercise.id}") shows an answer.'
        notes.append(more)
    if verdict.status == "todo" or _shows_solutions():
        return {}, notes
    sentence = ""
    if verdict.status == "pass" and exercise.verdict:  # the report of chapter 17 has it again
        sentence = exercise.verdict(to_builtin(answer))
        notes.append(f"Your verdict is kept: {sentence}")

    def count(record: dict[str, Any]) -> None:
        reached = [one for one in (record.get("status"), verdict.status) if one in STATUSES]
        record["status"] = max(reached, key=STATUSES.index)
        record["attempts"] = record.get("attempts", 0) + 1
        if verdict.status == "pass":
            record.setdefault("first_pass", progress.now())
        if sentence:
            record["verdict"] = sentence

    record = progress.update("exercises", exercise.id, count)
    if verdict.status == "pass" and exercise.part and not verdict.reason:
        notes.append(_kept(exercise, answer))
    return record, notes


def _card(verdict: Verdict, record: dict[str, Any], notes: list[str]) -> str:
    exercise = verdict.exercise
    if verdict.status == "todo":
        reason = "" if verdict.reason == _NOT_ANSWERED else verdict.reason
        return cards.todo(exercise, reason)
    if verdict.status == "fail":
        return cards.wrong(exercise, verdict.reason, record.get("attempts", 0), *notes)
    standing = "" if _shows_solutions() else cards.standing(exercise)
    note = f"Right, but {verdict.reason}."
    notes = [note, *notes] if verdict.reason else notes
    return cards.right(exercise, verdict.why, notes, standing)


def _kept(exercise: Exercise, answer: Any) -> str:
    """Save the learner's build in `mine/`; return a note with its path, or why it is not saved."""
    answers = answer if isinstance(answer, list | tuple) else [answer]
    try:
        path = mine.keep(exercise.part, answers)
    except (Problem, OSError) as error:
        return f"It is not kept: {error}"
    if path is None:
        return "It is not kept: no cell of this notebook defines it."
    note = f"Kept as {path}: what comes later runs on it."
    if exercise.race is None:
        return note
    stretch = (
        f'`from course_lib import race; race("{exercise.id}")` measures it beside the course\'s'
    )
    return f"{note} Can you make it faster? {stretch}."


def _strict() -> bool:
    return os.environ.get("COURSE_STRICT") == "1"


def _shows_solutions() -> bool:
    # Jupyter tells each kernel its notebook's path; running the solutions must record nothing.
    return "solutions" in Path(os.environ.get("JPY_SESSION_NAME", "")).parts


def _explain(error: Exception) -> str:
    """A reason from an exception, with the learner's own line that it came through, if any."""
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if where := learners_line(error):
        return f"{where}, raised {message}"
    return f"wants another kind of answer: checking it raised {message}"


def solution(exercise_id: str) -> Source:
    """The cells that solve an exercise; records that the solution was seen, unless it has passed.

    Raises ValueError for an unknown exercise.
    """
    exercise = find(exercise_id)
    cells = solution_of(exercise.id, room_of(int(exercise.id.partition(".")[0])))

    def seen(record: dict[str, Any]) -> None:
        if record.get("status") != "pass":  # else it was passed without the solution
            record["seen"] = True

    progress.update("exercises", exercise_id, seen)
    return Source("\n\n".join(cells), f"Solution of {exercise.id}")


def questions_of(chapter: int | str) -> tuple[Question, ...]:
    """The quiz of a chapter. Raises ValueError if the chapter is unknown or has no quiz."""
    if not str(chapter).isdecimal():
        raise ValueError(f'chapter {chapter!r} is not a number: write quiz("1")')
    found = questions(room_of(int(chapter)))
    if not found:
        raise ValueError(f"chapter {chapter} has no quiz: choose another chapter")
    return found


def quiz(chapter: int | str) -> "QuizWidget":
    """The quiz of a chapter as a widget: make it the last line of a cell.

    Raises ValueError if the chapter has no quiz.
    """
    from course_lib.checking.widgets import QuizWidget

    return QuizWidget(str(int(chapter)), questions_of(chapter))
