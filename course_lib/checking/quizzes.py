"""The quiz of a chapter: its questions are data, the widget that shows them is in quiz_widget."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_lib.checking.exercises import chapter_module
from course_lib.checking.questions import Question

if TYPE_CHECKING:
    from course_lib.checking.quiz_widget import QuizWidget


def questions_of(chapter: int | str) -> tuple[Question, ...]:
    """The quiz of a chapter. Raises ValueError when the chapter is unknown or has no quiz."""
    if not str(chapter).isdecimal():
        raise ValueError(f'chapter {chapter!r} is not a number: write quiz("1")')
    questions: Sequence[Question] = getattr(chapter_module(int(chapter)), "QUIZ", ())
    if not questions:
        raise ValueError(f"chapter {chapter} has no quiz: choose another chapter")
    return tuple(questions)


def quiz(chapter: int | str) -> "QuizWidget":
    """The quiz of a chapter as a widget: make it the last line of its cell.

    Raises ValueError when the chapter has no quiz.
    """
    from course_lib.checking.quiz_widget import QuizWidget

    questions = questions_of(chapter)
    return QuizWidget(str(int(chapter)), questions)
