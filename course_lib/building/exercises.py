"""Joins a chapter with its exercises: refuses a text without a check and a check without a text.

In a chapter an exercise is a markdown cell that begins with `### 5.1 Calculate: GPT-3`, a cell of
hints, and below it code with `check("5.1", …)`. What that runs is in exercises.py beside the text.
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from course_lib.building.chapters import Chapter, solved_here
from course_lib.checking.exercises import Exercise, exercises_at
from course_lib.checking.submissions.notebook import CHECK_CALL
from course_lib.checking.texts import DATA_TAGS, HEADING, Cell
from course_lib.problem import Problem


@dataclass(frozen=True)
class _Part:
    """One exercise of a chapter: its id, where its heading stands, and the code below that."""

    id: str
    where: str
    code: list[Cell] = field(default_factory=list)


def with_exercises(chapter: Chapter, root: Path) -> Chapter:
    """The chapter as notebooks show it: without the hints and the questions of its quiz.

    Raises Problem naming exercise and file when an exercise has no heading, no check or no check
    function, or its id is there twice.
    """
    checks = chapter.path.with_name("exercises.py").relative_to(root)
    known = _registered(root, checks)
    parts = _parts(chapter)
    _require_once([part.id for part in parts], chapter.path)
    for part in parts:
        if part.id not in known:
            remedy = f'add `@exercise("{part.id}", …)` to {checks}'
            raise Problem(f"{part.where}: exercise {part.id} has no check function: {remedy}")
        _require_check(part)
    for key in known:
        if key not in {part.id for part in parts}:
            remedy = f"add a markdown cell that begins with `### {key}`"
            raise Problem(f"{checks}: exercise {key} is missing from {chapter.path}: {remedy}")
    return replace(chapter, cells=tuple(c for c in chapter.cells if not DATA_TAGS & {*c.tags}))


def _registered(root: Path, checks: Path) -> dict[str, Exercise]:
    try:
        exercises = exercises_at(root / checks)
    except ValueError as error:
        raise Problem(f"{checks}: {error}") from None
    _require_once([exercise.id for exercise in exercises], checks)
    return {exercise.id: exercise for exercise in exercises}


def _require_once(keys: list[str], path: Path) -> None:
    for key, count in Counter(keys).items():
        if count > 1:
            raise Problem(f"{path}: exercise {key} is there {count} times: renumber the others")


def _parts(chapter: Chapter) -> list[_Part]:
    """The exercises of a chapter, each from its heading to the next one."""
    parts: list[_Part] = []
    for cell in chapter.cells:
        where = f"{chapter.path}:{cell.line}"
        if solved_here(cell) and "exercise" not in cell.tags:
            raise Problem(f'{where}: a solution outside an exercise: add tags=["exercise"]')
        if heading := _heading(cell):
            parts.append(_Part(heading[1], where))
        elif cell.kind == "code" and parts:
            parts[-1].code.append(cell)
        elif solved_here(cell) or (cell.kind == "code" and CHECK_CALL.search(cell.source)):
            remedy = f"add a markdown cell that begins with `### {chapter.number}.1 Calculate: `"
            raise Problem(f"{where}: this exercise has no heading: {remedy}")
    return parts


def _heading(cell: Cell) -> re.Match[str] | None:
    is_exercise = cell.kind == "markdown" and "exercise" in cell.tags
    return HEADING.match(cell.source) if is_exercise else None


def _require_check(part: _Part) -> None:
    """Every solution is checked before the next one begins, and under its own id."""
    checked, waiting = 0, False
    for cell in part.code:
        if solved_here(cell) and waiting:
            break
        waiting = waiting or solved_here(cell)
        for key in CHECK_CALL.findall(cell.source):
            if key != part.id:
                remedy = f'write `check("{part.id}", …)`'
                raise Problem(f"{part.where}: exercise {part.id} checks {key}: {remedy}")
            checked, waiting = checked + 1, False
    if waiting or not checked:
        remedy = f'add `check("{part.id}", …)` below it'
        raise Problem(f"{part.where}: exercise {part.id} has no check: {remedy}")
