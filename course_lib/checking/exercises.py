"""Defines exercises, declares their checks, and finds exercises by id."""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from course_lib import chapters as rooms
from course_lib.texts import asked

KINDS = ("calculate", "implement", "debug", "predict", "build")


class Wrong(Exception):
    """An answer is wrong: the text says in which way, without the right value.

    `because`: the reason for the right answer, which is shown after the last hint.
    """

    def __init__(self, text: str, because: str = "") -> None:
        super().__init__(text)
        self.because = because


class Unanswered(Exception):
    """The exercise is not answered yet: the answer is `...` or None."""


class CheckFailed(Exception):
    """Raised after the verdict line when COURSE_STRICT=1 and a check did not pass."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: `check(answer)` raises `Wrong` unless the answer is right.

    For a build, `part` is the file in `mine/` that stores the answer, without `.py`, and `race` is
    how it is benchmarked against the course's version. `verdict` turns a right answer into a
    sentence that is saved with the learner's progress.
    Raises ValueError if the id is not "chapter.number", the kind is unknown, the title is empty or
    has a full stop, or the hints are not different sentences.
    """

    id: str
    kind: str
    title: str
    hints: tuple[str, ...]
    check: Callable[[Any], None]
    part: str = ""
    race: Any = None
    verdict: Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d?\.[1-9]\d?", self.id):
            raise ValueError(f"id {self.id!r} is not chapter.number: write it like '1.2'")
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(KINDS)}: choose one")
        if not self.title.strip() or self.title.endswith("."):
            raise ValueError(f"title of {self.id} must be a text without a full stop: shorten it")
        if isinstance(self.hints, str) or not self.hints:
            raise ValueError(f"hints of {self.id} must be a tuple of texts: give at least one hint")
        if len({hint.strip() for hint in self.hints} - {""}) < len(self.hints):
            raise ValueError(f"hints of {self.id} must differ and say something: {self.hints!r}")

    @property
    def heading(self) -> str:
        """The heading of the exercise in a notebook: "5.1 Calculate: GPT-3"."""
        return f"{self.id} {self.kind.capitalize()}: {self.title}"


def exercise(
    id: str, *, verdict: Callable[[Any], str] | None = None
) -> Callable[[Callable[[Any], None]], Exercise]:
    """Decorator that turns a check function in a chapter's module into an `Exercise`.

    Kind, title and hints come from the chapter's texts in the same folder. Raises ValueError if no
    text has the exercise, and as `Exercise` does.
    """

    def declared(check: Callable[[Any], None]) -> Exercise:
        room = Path(check.__code__.co_filename).parent
        return Exercise(id, *asked(id, room)[:3], check, verdict=verdict)

    return declared


def chapters() -> list[int]:
    """The numbers of the chapters that have exercises."""
    found = rooms.files("exercises.py")
    return [number for number, room in rooms.rooms().items() if f"{room}.exercises" in found]


def chapter_module(chapter: int) -> ModuleType:
    """The module with the exercises of a chapter. Raises ValueError if there is none."""
    if chapter not in chapters():
        known = ", ".join(map(str, chapters())) or "none yet"
        message = f"chapter {chapter} has no exercises: choose one of these chapters: {known}"
        raise ValueError(message)
    return importlib.import_module(f"{rooms.rooms()[chapter]}.exercises")


def exercises_in(module: ModuleType) -> tuple[Exercise, ...]:
    """The exercises defined in a module, and its BUILDS, in the order of their numbers."""
    found = [value for value in vars(module).values() if isinstance(value, Exercise)]
    found += getattr(module, "BUILDS", ())
    return tuple(sorted(found, key=lambda each: int(each.id.partition(".")[2])))


def exercises_of(chapter: int) -> tuple[Exercise, ...]:
    """The exercises of one chapter. Raises ValueError if it has none."""
    return exercises_in(chapter_module(chapter))


def exercises_at(path: Path) -> tuple[Exercise, ...]:
    """Execute the file at `path` anew and return its exercises; () if there is no such file."""
    spec = importlib.util.spec_from_file_location(f"exercises_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        return ()
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return exercises_in(module)


def find(exercise_id: object) -> Exercise:
    """The exercise with this id. Raises ValueError with the nearest id if there is none."""
    match = re.fullmatch(r"(\d{1,2})\.\d{1,2}", str(exercise_id))
    if match and int(match[1]) in chapters():
        for found in exercises_of(int(match[1])):
            if found.id == exercise_id:
                return found
    ids = [found.id for chapter in chapters() for found in exercises_of(chapter)]
    near = difflib.get_close_matches(str(exercise_id), ids, n=1, cutoff=0.3)
    remedy = f"did you mean {near[0]!r}?" if near else "write chapter.number, such as '1.1'"
    raise ValueError(f"there is no exercise {exercise_id!r}: {remedy}")


_Value = TypeVar("_Value")


@contextmanager
def bound(variable: ContextVar[_Value | None], value: _Value) -> Iterator[_Value]:
    """Context manager: set the context variable to `value` inside the block; yields `value`."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


_kept: ContextVar[list[str] | None] = ContextVar("reasons", default=None)


def kept() -> AbstractContextManager[list[str]]:
    """Context manager: collect the reasons of all passed comparisons in the list it yields."""
    return bound(_kept, [])


def keep(reason: str) -> None:
    """Record the reason of a passed comparison, once, if `kept` is active."""
    reasons = _kept.get()
    if reasons is not None and reason and reason not in reasons:
        reasons.append(reason)
