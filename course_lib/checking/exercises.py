"""What an exercise is, how a check is declared, and where exercises are found by their ids."""

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
from course_lib.checking.texts import asked

KINDS = ("calculate", "implement", "debug", "predict", "build")


class Wrong(Exception):
    """An answer is wrong: the text says what kind of wrong it is, and not the value.

    `because`: why the right answer is what it is, which is told after the hints.
    """

    def __init__(self, text: str, because: str = "") -> None:
        super().__init__(text)
        self.because = because


class Unanswered(Exception):
    """The learner has not answered yet: the answer is `...` or None."""


class CheckFailed(Exception):
    """Raised after the verdict line when COURSE_STRICT=1 and a check did not pass."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: `check(answer)` returns when the answer is right and raises `Wrong` when not.

    Of a build, `part` is the file of `mine/` that keeps the answer, without `.py`, and `race` says
    how it is measured beside the course's own. `verdict` makes a right answer the sentence that is
    kept with the learner's progress.
    Raises ValueError when the id is not "chapter.number", the kind is unknown, the title is empty
    or the hints are not different sentences.
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
        """What stands above the exercise in a notebook: "5.1 Calculate: GPT-3"."""
        return f"{self.id} {self.kind.capitalize()}: {self.title}"


def exercise(
    id: str, *, verdict: Callable[[Any], str] | None = None
) -> Callable[[Callable[[Any], None]], Exercise]:
    """Make the check below it an `Exercise`, found because it is in its chapter's module.

    Kind, title and hints come from the text in the folder of the check. Raises ValueError when that
    text does not ask the exercise, and as `Exercise` does.
    """

    def declared(check: Callable[[Any], None]) -> Exercise:
        text = next(Path(check.__code__.co_filename).parent.glob("[0-9][0-9]_*.py"))
        return Exercise(id, *asked(id, text), check, verdict=verdict)

    return declared


def chapters() -> list[int]:
    """Numbers of the chapters that have exercises."""
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
    """The exercises that stand in a module, and its BUILDS, in the order of their numbers."""
    found = [value for value in vars(module).values() if isinstance(value, Exercise)]
    found += getattr(module, "BUILDS", ())
    return tuple(sorted(found, key=lambda each: int(each.id.partition(".")[2])))


def exercises_of(chapter: int) -> tuple[Exercise, ...]:
    """The exercises of one chapter. Raises ValueError when the chapter has none."""
    return exercises_in(chapter_module(chapter))


def exercises_at(path: Path) -> tuple[Exercise, ...]:
    """The exercises in the file at `path`, run afresh; none when there is no such file."""
    spec = importlib.util.spec_from_file_location(f"exercises_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        return ()
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return exercises_in(module)


def find(exercise_id: object) -> Exercise:
    """The exercise with this id. Raises ValueError naming the nearest id when there is none."""
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
    """Inside, the context variable has this value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


_kept: ContextVar[list[str] | None] = ContextVar("reasons", default=None)


def kept() -> AbstractContextManager[list[str]]:
    """Inside, the reasons of all comparisons that hold are collected in this list, each once."""
    return bound(_kept, [])


def keep(reason: str) -> None:
    """A comparison held, because of this."""
    found = _kept.get()
    if found is not None and reason and reason not in found:
        found.append(reason)
