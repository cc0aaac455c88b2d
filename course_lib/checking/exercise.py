"""What an exercise is, and where it is found by its id."""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

KINDS = ("calculate", "implement", "debug", "predict")


class Wrong(Exception):
    """An answer is wrong; the text reads "gave X, expected Y because ..."."""


class Unanswered(Exception):
    """The learner has not answered yet: the answer is `...` or None."""


class CheckFailed(Exception):
    """Raised after the verdict line when COURSE_STRICT=1 and a check did not pass."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: `check(answer)` returns when the answer is right and raises `Wrong` when not.

    Raises ValueError when the id is not "chapter.number", the kind is unknown or hints are missing.
    """

    id: str
    title: str
    kind: str
    check: Callable[[Any], None]
    hints: tuple[str, ...]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d?\.[1-9]\d?", self.id):
            raise ValueError(f"id {self.id!r} is not chapter.number: write it like '1.2'")
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(KINDS)}: choose one")
        if isinstance(self.hints, str) or not self.hints:
            raise ValueError(f"hints of {self.id} must be a tuple of texts: give at least one hint")


def chapters() -> list[int]:
    """Numbers of the chapters that have exercises."""
    package = importlib.import_module("course_lib.checking")
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(int(name[2:]) for name in names if re.fullmatch(r"ch\d\d", name))


def chapter_module(chapter: int) -> ModuleType:
    """The module with EXERCISES and QUIZ of a chapter. Raises ValueError when there is none."""
    try:
        return importlib.import_module(f"course_lib.checking.ch{chapter:02d}")
    except ModuleNotFoundError as error:
        if error.name != f"course_lib.checking.ch{chapter:02d}":
            raise
        known = ", ".join(map(str, chapters())) or "none yet"
        message = f"chapter {chapter} has no exercises: choose one of these chapters: {known}"
        raise ValueError(message) from None


def exercises_of(chapter: int) -> tuple[Exercise, ...]:
    """The exercises of one chapter. Raises ValueError when the chapter has none."""
    return tuple(chapter_module(chapter).EXERCISES)


def find(exercise_id: str) -> Exercise:
    """The exercise with this id. Raises ValueError naming the nearest id when there is none."""
    match = re.fullmatch(r"(\d{1,2})\.\d{1,2}", str(exercise_id))
    if match and int(match[1]) in chapters():
        for exercise in exercises_of(int(match[1])):
            if exercise.id == exercise_id:
                return exercise
    ids = [exercise.id for chapter in chapters() for exercise in exercises_of(chapter)]
    near = difflib.get_close_matches(str(exercise_id), ids, n=1, cutoff=0.3)
    remedy = f"did you mean {near[0]!r}?" if near else "write chapter.number, such as '1.1'"
    raise ValueError(f"there is no exercise {exercise_id!r}: {remedy}")
