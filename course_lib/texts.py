"""Parses the texts of a chapter, one for each sitting: cells and exercises.

    # %% [markdown] tags=["exercise"]
    # ### 7.1 Calculate: fits on one GPU, dies on two
    #
    # GPT-2 with 1,557,611,200 parameters …

    # %% [raw] tags=["hints"]
    # importance 4, difficulty 2
    # What does a rank of DDP hold that one process without DDP does not?
    # AdamW in fp32 needs 16 bytes a parameter.

Each further line of a hints cell is one hint. Raw cells with data are not copied to notebooks.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from course_lib import chapters as rooms

TEXTS = "[0-9][0-9]_*.py"
DATA_TAGS = frozenset({"hints", "quiz", "sitting"})
HEADING = re.compile(r"### (\d+\.\d+) (\w+): (.+)")
MARK = re.compile(r"^# %%(?: \[(\w+)\])?(?: tags=(\[.*\]))?$", re.M)


@dataclass(frozen=True)
class Cell:
    """A cell of a text; `kind` is "code", "markdown" or "raw", `line` is the line of its `# %%`."""

    kind: str
    source: str
    line: int
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def tags(self) -> list[str]:
        """The cell's tags."""
        return list(self.metadata.get("tags", []))


def cells_of(text: str) -> Iterator[Cell]:
    """Parse a text in the percent format, which jupytext and editors support."""
    marks = list(MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    line, position = 1, 0
    for mark, end in zip(marks, ends, strict=True):
        line, position = line + text.count("\n", position, mark.start()), mark.start()
        source = text[mark.end() : end].strip("\n")
        if mark[1]:
            source = re.sub(r"^# ?", "", source, flags=re.M)
        metadata = {"tags": json.loads(mark[2])} if mark[2] else {}
        yield Cell(mark[1] or "code", source, line, metadata)


# --- Cells that a notebook shows folded -----------------------------------------------------------

# Calls below a chapter's imports that set something up and show nothing.
_SETS_UP = {"launch.warm_up", "torch.set_num_threads"}


def folds(cell: Cell) -> str:
    """Why a cell is folded in a notebook: "imports", "drawing" or "answer"; "" if it is not."""
    if cell.kind != "code":
        return ""
    if "drawing" in cell.tags:
        return "drawing"
    if "yours=" in cell.source and "expect(" in cell.source:
        return "answer"
    return "imports" if "import" in cell.source and _only_prepares(cell.source) else ""


def _only_prepares(source: str) -> bool:
    """Whether a cell begins with an import and has only imports and calls in _SETS_UP."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # such as a line that begins with % or !
        return False
    imports = (ast.Import, ast.ImportFrom)
    return isinstance(statements[0] if statements else None, imports) and all(
        isinstance(each, imports) or _sets_up(each) for each in statements
    )


def _sets_up(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) in _SETS_UP


# --- Exercises ------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """An exercise's kind, title and hints; importance and difficulty from 1 to 5.

    `group`: better done with others.
    """

    kind: str
    title: str
    hints: tuple[str, ...]
    importance: int = 3
    difficulty: int = 3
    group: bool = False


def room_of(chapter: int) -> Path:
    """The folder of a chapter. Raises ValueError if there is no such chapter."""
    for path in rooms.files(TEXTS).values():
        if int(path.name[:2]) == chapter:
            return path.parent
    raise ValueError(
        f"chapter {chapter} has no text: choose one of {', '.join(map(str, rooms.rooms()))}"
    )


def asked(exercise_id: str, room: Path) -> Asked:
    """The data of an exercise. Raises ValueError if no text in the folder `room` has it."""
    for text in sorted(room.glob(TEXTS)):
        exercises = asked_in(text.read_text(encoding="utf-8"))
        if exercise_id in exercises:
            return exercises[exercise_id]
    remedy = f"write `### {exercise_id} Calculate: a title` and a cell of hints"
    raise ValueError(f"exercise {exercise_id} is missing from {room.name}: {remedy}")


_RATED = re.compile(r"importance ([1-5]), difficulty ([1-5])(, group)?")


@lru_cache(maxsize=64)
def asked_in(text: str) -> dict[str, Asked]:
    """{id: data} of the exercises in a text, in its order."""
    found: dict[str, Asked] = {}
    last = ""
    for cell in cells_of(text):
        if heading := HEADING.match(cell.source):
            last, kind, title = heading.groups()
            found[last] = Asked(kind.lower(), title, ())
        elif "hints" in cell.tags and last:
            found[last] = _with_hints(found[last], cell.source)
    return found


def _with_hints(exercise: Asked, source: str) -> Asked:
    lines = tuple(filter(None, source.split("\n")))
    rated = _RATED.fullmatch(lines[0]) if lines else None
    if rated is None:
        return exercise._replace(hints=lines)
    importance, difficulty = int(rated[1]), int(rated[2])
    return Asked(exercise.kind, exercise.title, lines[1:], importance, difficulty, bool(rated[3]))


def solution_of(exercise_id: str, room: Path) -> list[str]:
    """The sources of the code cells that solve an exercise of the texts in the folder `room`."""
    found, inside = [], False
    for text in sorted(room.glob(TEXTS)):
        for cell in cells_of(text.read_text(encoding="utf-8")):
            if "exercise" not in cell.tags:
                continue
            if heading := HEADING.match(cell.source):
                inside = heading[1] == exercise_id
            elif inside and cell.kind == "code":
                found.append(solved(cell.source))
    return found


# --- Solved and unsolved --------------------------------------------------------------------------

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
GIVEN_BEGIN, GIVEN_END = "### BEGIN GIVEN", "### END GIVEN"
# `name = ...`, `a, b = ..., ...`, `x: int = ...` or a bare `...`: what a learner replaces.
_PLACEHOLDER = re.compile(
    r"^\s*(?:[\w.\[\], ]+(?::[^=]+)?=\s*)?[\[(]?\.\.\.(?:,\s*\.\.\.)*[\])]?\s*(?:#.*)?$"
)


def unsolved(source: str) -> str:
    """Replace each solution by `...`, unless given code or a placeholder is there already."""
    kept: list[str] = []
    cutting = given = False
    for line in source.split("\n"):
        mark = line.strip()
        if mark == BEGIN:
            cutting = True
            if not given and not _asks(kept, line):
                kept.append(line[: len(line) - len(line.lstrip())] + "...")
        elif mark == END:
            cutting = False
        elif mark not in (GIVEN_BEGIN, GIVEN_END) and not cutting:
            kept.append(line)
        given = mark == GIVEN_END
    return "\n".join(kept)


def _asks(kept: list[str], mark: str) -> bool:
    """Whether there is a `...` to replace: in the line above, or, if not indented, in the cell."""
    if mark.startswith("###") and any("..." in line for line in kept):
        return True
    return bool(kept and _PLACEHOLDER.match(kept[-1]))


def solved(source: str) -> str:
    """Remove the marks, the given code, and the placeholders that a solution replaces."""
    kept: list[str] = []
    given = False
    for line in source.split("\n"):
        mark = line.strip()
        if mark == BEGIN:
            while kept and _PLACEHOLDER.match(kept[-1]):
                kept.pop()
        elif mark in (GIVEN_BEGIN, GIVEN_END):
            given = mark == GIVEN_BEGIN
        elif mark != END and not given:
            kept.append(line)
    return "\n".join(kept)
